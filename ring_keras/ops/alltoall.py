"""Alltoall: every rank sends some of its rows to every other."""

import tensorflow as tf

from ring_keras import _libraries
from ring_keras.errors import translated
from ring_keras.job.process_set import ProcessSet
from ring_keras.ops.arguments import TensorLike, to_tensor
from ring_keras.ops.request_names import to_request_name
from ring_keras.ops.step import step_role
from ring_keras.ops.training_step import in_training_step
from ring_keras.values.arguments import to_communicator

__all__ = ["alltoall"]


@translated()
def alltoall(
    tensor: TensorLike,
    splits: TensorLike | None = None,
    *,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> tf.Tensor | tuple[tf.Tensor, tf.Tensor]:
    """Sends rows of a tensor to every rank, and receives rows from each.

    Differentiable: gradients travel back the way the rows came, weighted as those of
    `allreduce` are.

    Examples:
        >>> ring.alltoall(tf.constant([0, 1]) + 10 * ring.rank()).numpy()
        array([ 0, 10], dtype=int32)

        With `splits`, rank 0 keeps 1 row and sends 2, and so does rank 1 the other way:

        >>> splits = [1, 2] if ring.rank() == 0 else [2, 1]
        >>> rows, counts = ring.alltoall(tf.range(3) + 10 * ring.rank(), splits)
        >>> rows.numpy(), counts.numpy()
        (array([ 0, 10, 11], dtype=int32), array([1, 2], dtype=int32))

    Args:
        tensor: At least one dimension. The first may differ between ranks; the
            others and the dtype must agree.
        splits: Integers, one per rank: how many rows go to that rank, in order.
            Their sum is the number of rows of `tensor`. By default every rank
            gets the same number, which must divide evenly.
        name: See `allreduce`. Defaults to "alltoall".
        process_set: Ranks taking part. Defaults to all.

    Returns:
        The rows from rank 0, then those from rank 1, and so on. If `splits` is
        given: a tuple of these rows and of a vector, in the dtype of `splits`,
        with the number of rows from each rank.

    Raises:
        NotInitializedError: If `ring_keras.init()` has not run.
        tf.errors.InvalidArgumentError: If the splits do not fit the tensor.
        RankMismatchError: If ranks disagree on dtype or inner dimensions.
        PeerLostError: If a rank died or left.
        CollectiveTimeoutError: If a rank stays silent too long.
    """
    tensor = to_tensor(tensor, "alltoall")
    rows_for = tf.constant([], tf.int64)
    if splits is not None:
        splits = tf.convert_to_tensor(splits)
        if not splits.dtype.is_integer or splits.shape.num_elements() == 0:
            raise ValueError(
                "[RK404] "
                "`splits` of ring_keras.alltoall counts rows, in integers, for "
                "each rank. "
                f"Received: dtype={splits.dtype.name}, shape={splits.shape}"
            )
        rows_for = tf.cast(splits, tf.int64)
    with in_training_step():
        received, rows_from = _libraries.ops().ring_keras_alltoall(
            tensor=tensor,
            splits=rows_for,
            request_name=to_request_name(name, "alltoall", [tensor]),
            communicator_id=to_communicator(process_set),
            step=step_role(),
        )
    if splits is None:
        return received
    return received, tf.cast(rows_from, splits.dtype)
