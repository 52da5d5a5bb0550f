"""Barrier: no rank leaves before every rank has entered."""

from ring_keras import _libraries
from ring_keras.errors import translated
from ring_keras.job.process_set import ProcessSet
from ring_keras.ops.arguments import to_communicator

__all__ = ["barrier"]


@translated()
def barrier(*, name: str | None = None, process_set: ProcessSet | None = None) -> None:
    """Waits until every rank has called it.

    Args:
        name: See `allreduce`. Defaults to "barrier".
        process_set: Ranks taking part. Defaults to all.

    Raises:
        NotInitializedError: If `ring_keras.init()` has not run.
        PeerLostError: If a rank died or left.
        CollectiveTimeoutError: If a rank stays silent too long.
    """
    _libraries.ops().ring_keras_barrier(
        request_name=name or "barrier", communicator_id=to_communicator(process_set)
    )
