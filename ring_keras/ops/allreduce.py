"""Allreduce: every rank gets the reduction of all ranks' tensors."""

import tensorflow as tf

from ring_keras import _libraries
from ring_keras.errors import translated
from ring_keras.job.process_set import ProcessSet, global_process_set
from ring_keras.keras_internals.graphs import is_for_xla
from ring_keras.ops.adasum import adasum, is_adasum
from ring_keras.ops.allgather import allgather_all
from ring_keras.ops.arguments import (
    Factor,
    TensorLike,
    to_factor,
    to_tensor,
    to_wire_dtype,
)
from ring_keras.ops.request_names import to_request_name
from ring_keras.ops.scaling import scaled
from ring_keras.ops.step import step_role
from ring_keras.ops.training_step import in_training_step
from ring_keras.values.arguments import to_communicator, to_reduce_op
from ring_keras.values.compression import Compression
from ring_keras.values.reduce_op import ReduceOp

__all__ = ["allreduce", "gather_indices"]


@translated()
def allreduce(
    tensor: TensorLike,
    op: ReduceOp | str = ReduceOp.AVERAGE,
    *,
    name: str | None = None,
    prescale_factor: Factor = 1.0,
    postscale_factor: Factor = 1.0,
    compression: Compression | str = Compression.none,
    process_set: ProcessSet | None = None,
) -> tf.Tensor | tf.IndexedSlices:
    """Reduces a tensor elementwise over all ranks.

    Differentiable for `SUM` and `AVERAGE`, whose gradient is reduced in the
    same way, and for `ADASUM`. In a training step that weights ranks by their examples,
    gradients are weighted as those of `allgather` are; a rank without a batch raises
    there (RK414).

    Examples:
        >>> loss = tf.constant([1.0, 2.0]) * (ring.rank() + 1)
        >>> ring.allreduce(loss).numpy()
        array([1.5, 3. ], dtype=float32)
        >>> ring.allreduce(loss, op=ring.Sum).numpy()
        array([3., 6.], dtype=float32)

    Args:
        tensor: Tensor of any shape; shape and dtype must agree on every rank.
            `tf.IndexedSlices` are gathered instead, so the result holds the
            slices of all ranks; they may differ in number.
        op: How to combine values. `AVERAGE` rejects integers; bool takes `MIN`
            and `MAX`. `ADASUM` combines ranks pair by pair, so that their
            common part counts once: a (1 - a.b / 2|a|^2) + b (1 - a.b /
            2|b|^2). It takes floating-point tensors of static shape.
        name: Pairs this call with the other ranks' calls. The n-th call with a
            name on one rank is paired with the n-th call on every other, so
            ranks that make their calls in the same order need no name.
            Defaults to "allreduce".
        prescale_factor: Multiplies this rank's tensor before the reduction;
            may differ between ranks. To gradients, both factors are constants.
        postscale_factor: Multiplies the result; the same on every rank.
        compression: The type in which float32 travels between hosts; the same
            on every rank. With `ADASUM` it is used within hosts, too, and the
            result is rounded. `tf.IndexedSlices` and gradients of this
            function are not compressed.
        process_set: Ranks taking part. Defaults to all.

    Returns:
        Tensor like `tensor`, bitwise equal on every rank.

    Raises:
        NotInitializedError: If `ring_keras.init()` has not run.
        RankMismatchError: If ranks disagree on shape, dtype or op.
        PeerLostError: If a rank died or left.
        CollectiveTimeoutError: If a rank stays silent for
            `RING_KERAS_COLLECTIVE_TIMEOUT_S` seconds.
    """
    if isinstance(tensor, tf.IndexedSlices):
        name = to_request_name(name, "allreduce", [tensor])
        return _allreduce_slices(
            tensor, op, name, prescale_factor, postscale_factor, process_set
        )
    tensor = to_tensor(tensor, "allreduce")
    name = to_request_name(name, "allreduce", [tensor])
    if is_adasum(op):
        return adasum(
            [tensor],
            name=name,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            compression=compression,
            process_set=process_set,
        )[0]
    with in_training_step():
        return _libraries.ops().ring_keras_allreduce(
            tensor=tensor,
            prescale=to_factor(prescale_factor),
            postscale=to_factor(postscale_factor),
            reduce_op=to_reduce_op(op, tensor.dtype.name, "allreduce"),
            request_name=name,
            wire_dtype=to_wire_dtype(compression, tensor.dtype, "allreduce"),
            communicator_id=to_communicator(process_set),
            step=step_role(),
        )


def _allreduce_slices(
    slices: tf.IndexedSlices,
    op: ReduceOp | str,
    name: str,
    prescale_factor: Factor,
    postscale_factor: Factor,
    process_set: ProcessSet | None,
) -> tf.IndexedSlices:
    """Sums sparsely: slices with the same index add up wherever they are used."""
    values = to_tensor(slices.values, "allreduce")
    reduce_op = to_reduce_op(op, values.dtype.name, "allreduce")
    if reduce_op not in (ReduceOp.SUM, ReduceOp.AVERAGE):
        raise ValueError(
            "[RK403] "
            "ring_keras.allreduce of tf.IndexedSlices takes op='sum' or 'average'; "
            "for others, convert with tf.convert_to_tensor() first. "
            f"Received: op={reduce_op!r}"
        )
    values = scaled(values, to_factor(prescale_factor))
    values = allgather_all(values, name=f"{name}/values", process_set=process_set)
    scale, where = to_factor(postscale_factor), f"{name}/indices"
    if reduce_op == ReduceOp.AVERAGE:
        indices, count = gather_indices(slices.indices, where, process_set)
        scale = scale / count
    else:
        indices = allgather_all(slices.indices, name=where, process_set=process_set)
    return tf.IndexedSlices(scaled(values, scale), indices, slices.dense_shape)


def gather_indices(
    indices: TensorLike, name: str | None, process_set: ProcessSet | None
) -> tuple[tf.Tensor, Factor]:
    """The indices of all ranks' slices, and how many ranks an average of them is of.

    That is, of those that are not in `join()`: each marks the end of its own.
    """
    indices = to_tensor(indices, "allreduce")
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    # XLA must know the number of rows, which is another one if a rank is in `join()`.
    if indices.dtype.is_unsigned or (graph is not None and is_for_xla(graph)):
        gathered = allgather_all(indices, name=name, process_set=process_set)
        return gathered, (process_set or global_process_set).size()
    end = tf.constant([indices.dtype.min], indices.dtype)
    gathered = allgather_all(
        tf.concat([indices, end], 0), name=name, process_set=process_set
    )
    is_index = tf.not_equal(gathered, end)
    count = tf.size(gathered) - tf.math.count_nonzero(is_index, dtype=tf.int32)
    return tf.boolean_mask(gathered, is_index), tf.cast(count, tf.float64)
