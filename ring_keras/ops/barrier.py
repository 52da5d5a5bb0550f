"""Barrier: no rank leaves before every rank has entered."""

import tensorflow as tf

from ring_keras import _libraries
from ring_keras.errors import translated
from ring_keras.job.process_set import ProcessSet
from ring_keras.ops.branch_order import in_branch_order
from ring_keras.ops.request_names import in_unordered_graph, to_request_name
from ring_keras.values.arguments import to_communicator

__all__ = ["barrier"]


@translated()
def barrier(
    *, name: str | None = None, process_set: ProcessSet | None = None
) -> tf.Operation | None:
    """Waits until every rank has called it.

    Examples:
        >>> if ring.rank() == 0:
        ...     np.save("table.npy", np.arange(3))
        >>> ring.barrier()  # The file is complete.
        >>> np.load("table.npy")
        array([0, 1, 2])

    Args:
        name: See `allreduce`. Defaults to "barrier".
        process_set: Ranks taking part. Defaults to all.

    Returns:
        None; or, in the graph of a `tf.compat.v1.Session`, the operation that
        waits when it is run.

    Raises:
        NotInitializedError: If `ring_keras.init()` has not run.
        PeerLostError: If a rank died or left.
        CollectiveTimeoutError: If a rank stays silent too long.
    """
    with in_branch_order():
        operation = _libraries.ops().ring_keras_barrier(
            request_name=to_request_name(name, "barrier", []),
            communicator_id=to_communicator(process_set),
        )
    return operation if in_unordered_graph() else None
