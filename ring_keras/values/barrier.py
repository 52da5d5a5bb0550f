"""Barrier where no graph is traced: no rank leaves before every rank has entered."""

from ring_keras import _native
from ring_keras.job.process_set import ProcessSet
from ring_keras.values.arguments import to_communicator

__all__ = ["barrier"]


def barrier(*, name: str = "barrier", process_set: ProcessSet | None = None) -> None:
    """Waits until every rank has called it, with Keras's back ends torch and JAX.

    It does not wait for what JAX computes beside: `jax.block_until_ready` does.

    Args:
        name: Pairs the ranks' calls, the n-th of each with that name.
        process_set: Ranks taking part. Defaults to all.

    Raises:
        NotInitializedError: If `ring_keras.init()` has not run.
        PeerLostError: If a rank died or left.
        CollectiveTimeoutError: If a rank stays silent too long.
    """
    _native.barrier(name, to_communicator(process_set))
