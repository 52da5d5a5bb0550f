"""Allgather: every rank gets the rows of all ranks."""

import tensorflow as tf

from ring_keras import _libraries
from ring_keras.errors import translated
from ring_keras.job.process_set import ProcessSet
from ring_keras.ops.arguments import TensorLike, to_tensor
from ring_keras.ops.request_names import to_request_name
from ring_keras.ops.step import step_role
from ring_keras.ops.training_step import (
    in_training_step,
    may_lack_examples,
    own_example_rows,
)
from ring_keras.values.arguments import to_communicator

__all__ = ["allgather", "allgather_all"]


@translated()
def allgather(
    tensor: TensorLike,
    *,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> tf.Tensor:
    """Concatenates the ranks' tensors along the first dimension.

    Differentiable: a rank gets the sum of the gradients of its own rows. In a training
    step that weights ranks by their examples, as `fit` and `weighted_step` do, these
    are weighted alike, so a loss over the rows of all ranks trains as in one process,
    however many each has. There a rank that has no batch of its own, as from
    `ring.data.join`, sends no rows, and gets its row of zeros behind the others' rows:
    where a rank's rows lie, its number tells, gathered as often as it has rows, and
    not the rows that ranks have counted.

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
    if tensor.shape.rank == 0 or not may_lack_examples():
        return allgather_all(tensor, name=name, process_set=process_set)
    rows = own_example_rows(tensor)
    gathered = allgather_all(tensor[:rows], name=name, process_set=process_set)
    return tf.concat([gathered, tensor[rows:]], 0)


@translated()
def allgather_all(
    tensor: TensorLike,
    *,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> tf.Tensor:
    """The same, also of a rank without a batch."""
    tensor = to_tensor(tensor, "allgather")
    if tensor.shape.rank == 0:
        tensor = tf.expand_dims(tensor, 0)
    name = to_request_name(name, "allgather", [tensor])
    with in_training_step():
        return _allgather(tensor, name, to_communicator(process_set))


def _allgather(tensor: tf.Tensor, name: str, communicator_id: int) -> tf.Tensor:
    return _libraries.ops().ring_keras_allgather(
        tensor=tensor,
        request_name=name,
        communicator_id=communicator_id,
        step=step_role(),
    )
