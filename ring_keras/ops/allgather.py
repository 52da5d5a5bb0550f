"""Allgather: every rank gets the rows of all ranks."""

import tensorflow as tf

from ring_keras import _libraries
from ring_keras.errors import translated
from ring_keras.job.process_set import ProcessSet
from ring_keras.ops.arguments import TensorLike, to_tensor
from ring_keras.ops.request_names import to_request_name
from ring_keras.ops.step import step_role
from ring_keras.values.arguments import to_communicator

__all__ = ["allgather"]


@translated()
def allgather(
    tensor: TensorLike,
    *,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> tf.Tensor:
    """Concatenates the ranks' tensors along the first dimension.

    Differentiable: a rank gets the sum of the gradients of its own rows.

    Examples:
        >>> rows = tf.fill([ring.rank() + 1, 2], ring.rank())  # 1 row, and 2 rows.
        >>> ring.allgather(rows).numpy()
        array([[0, 0],
               [1, 1],
               [1, 1]], dtype=int32)

    Args:
        tensor: The first dimension may differ between ranks, and be 0; the
            others and the dtype must agree. A scalar counts as one row.
        name: See `allreduce`. Defaults to "allgather".
        process_set: Ranks taking part. Defaults to all.

    Returns:
        The rows of rank 0, then those of rank 1, and so on; equal on every
        rank.

    Raises:
        NotInitializedError: If `ring_keras.init()` has not run.
        RankMismatchError: If ranks disagree on dtype or inner dimensions.
        PeerLostError: If a rank died or left.
        CollectiveTimeoutError: If a rank stays silent too long.
    """
    tensor = to_tensor(tensor, "allgather")
    if tensor.shape.rank == 0:
        tensor = tf.expand_dims(tensor, 0)
    return _libraries.ops().ring_keras_allgather(
        tensor=tensor,
        request_name=to_request_name(name, "allgather", [tensor]),
        communicator_id=to_communicator(process_set),
        step=step_role(),
    )
