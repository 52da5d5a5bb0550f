"""Reduce-scatter: every rank gets its share of the reduction's rows."""

import tensorflow as tf

from ring_keras import _libraries
from ring_keras.errors import translated
from ring_keras.job.process_set import ProcessSet
from ring_keras.ops.arguments import Factor, TensorLike, to_factor, to_tensor
from ring_keras.ops.branch_order import in_branch_order
from ring_keras.ops.request_names import to_request_name
from ring_keras.values.arguments import to_communicator, to_reduce_op
from ring_keras.values.reduce_op import ReduceOp

__all__ = ["reducescatter"]


@translated()
def reducescatter(
    tensor: TensorLike,
    op: ReduceOp | str = ReduceOp.AVERAGE,
    *,
    name: str | None = None,
    prescale_factor: Factor = 1.0,
    postscale_factor: Factor = 1.0,
    process_set: ProcessSet | None = None,
) -> tf.Tensor:
    """Reduces a tensor over all ranks and gives each rank a part of the rows.

    Differentiable for `SUM` and `AVERAGE`: the gradients of the parts are
    gathered, weighted as those of `allreduce` are.

    Examples:
        >>> tensor = tf.constant([[1.0], [2.0], [3.0]])
        >>> ring.reducescatter(tensor, op=ring.Sum).numpy()  # Rank 1 gets [[6.]].
        array([[2.],
               [4.]], dtype=float32)

    Args:
        tensor: At least one dimension; shape and dtype must agree on every
            rank.
        op: See `allreduce`.
        name: See `allreduce`. Defaults to "reducescatter".
        prescale_factor: See `allreduce`.
        postscale_factor: See `allreduce`.
        process_set: Ranks taking part. Defaults to all.

    Returns:
        Rank 0 gets the first rows, rank 1 the next, and so on. If the rows do
        not divide evenly, the first ranks get one more.

    Raises:
        NotInitializedError: If `ring_keras.init()` has not run.
        RankMismatchError: If ranks disagree on shape, dtype or op.
        PeerLostError: If a rank died or left.
        CollectiveTimeoutError: If a rank stays silent too long.
    """
    tensor = to_tensor(tensor, "reducescatter")
    with in_branch_order():
        return _libraries.ops().ring_keras_reduce_scatter(
            tensor=tensor,
            prescale=to_factor(prescale_factor),
            postscale=to_factor(postscale_factor),
            reduce_op=to_reduce_op(op, tensor.dtype.name, "reducescatter"),
            request_name=to_request_name(name, "reducescatter", [tensor]),
            communicator_id=to_communicator(process_set),
        )
