"""The adaptive sum of the ranks' tensors, made of other collectives."""

import math
from collections.abc import Sequence

import tensorflow as tf

from ring_keras import _libraries
from ring_keras.job.process_set import ProcessSet, global_process_set
from ring_keras.ops.arguments import Factor, to_factor
from ring_keras.ops.scaling import scaled
from ring_keras.ops.step import step_plan, step_role
from ring_keras.ops.training_step import in_training_step
from ring_keras.values.compression import Compression
from ring_keras.values.reduce_op import ReduceOp

__all__ = ["WIRE_DTYPES", "adasum", "is_adasum"]

WIRE_DTYPES = {Compression.bf16: tf.bfloat16, Compression.fp16: tf.float16}


def is_adasum(op: ReduceOp | str) -> bool:
    """Whether `op` is the one that this module is for."""
    return str(op) == ReduceOp.ADASUM.value


def adasum(
    tensors: Sequence[tf.Tensor],
    *,
    name: str,
    prescale_factor: Factor = 1.0,
    postscale_factor: Factor = 1.0,
    compression: Compression | str = Compression.none,
    process_set: ProcessSet | None = None,
) -> list[tf.Tensor]:
    """Combines each tensor with its peers of the other ranks, pair by pair.

    Two tensors a and b become

        a (1 - a.b / 2|a|^2) + b (1 - a.b / 2|b|^2)

    which is their sum where they are orthogonal, and their mean where they are
    equal. Ranks are combined as 0 with 1, 2 with 3 and so on, then those
    results in the same manner. If their number is no power of two, those from
    the largest power of two on are first combined with ranks 0, 1, ...

    Each rank gets one part of every tensor from all ranks, combines those, and
    sends its part of the result to all; so no element is computed twice, and
    the result is the same everywhere. That moves as many bytes as an allreduce,
    with a small allreduce for the dot products of each of log2(size) levels.
    While it runs it takes memory for about 5 copies of the tensors. Dot products
    are added in float64, 16-bit tensors combined in float32.

    Args:
        tensors: One or more floating-point tensors of one dtype and of static
            shapes that agree on every rank.
        name: Pairs this call with the other ranks' calls.
        prescale_factor: Multiplies this rank's tensors before.
        postscale_factor: Multiplies the results.
        compression: The type in which float32 parts travel, within a host too.
        process_set: Ranks taking part. Defaults to all.

    Returns:
        The combined tensors, in the order given.

    Source:
        Maleki et al. 2021, arXiv:2006.02924.
    """
    _check(tensors)
    before, after = to_factor(prescale_factor), to_factor(postscale_factor)
    with in_training_step():
        combined = _adasum(
            [scaled(tensor, before) for tensor in tensors],
            name,
            Compression(compression),
            process_set or global_process_set,
        )
    return [scaled(tensor, after) for tensor in combined]


def _check(tensors: Sequence[tf.Tensor]) -> None:
    for tensor in tensors:
        if not tensor.dtype.is_floating or not tensor.shape.is_fully_defined():
            raise ValueError(
                "[RK403] "
                "op='adasum' takes floating-point tensors of static shape. "
                f"Received: dtype={tensor.dtype.name}, shape={tensor.shape}"
            )


def _adasum(
    tensors: Sequence[tf.Tensor],
    name: str,
    compression: Compression,
    process_set: ProcessSet,
) -> list[tf.Tensor]:
    size, communicator_id = process_set.size(), process_set.communicator_id()
    if size == 1:
        return [tf.identity(tensor) for tensor in tensors]
    dtype = tensors[0].dtype
    shapes = [tensor.shape for tensor in tensors]
    # Each tensor in `size` parts of one length, the last filled up with zeros,
    # which change no dot product.
    lengths = [math.ceil(shape.num_elements() / size) for shape in shapes]
    parts = tf.concat(
        [
            _in_parts(tensor, size, length)
            for tensor, length in zip(tensors, lengths, strict=True)
        ],
        axis=1,
    )
    wire_dtype = dtype
    if dtype == tf.float32:
        wire_dtype = WIRE_DTYPES.get(compression, dtype)

    mine, _ = _libraries.ops().ring_keras_alltoall(
        tensor=tf.cast(parts, wire_dtype),
        splits=tf.constant([], tf.int64),
        request_name=name,  # So an allreduce of that name is an error, not a wait.
        communicator_id=communicator_id,
        step=step_role(),
        plan=step_plan(),
    )
    rows = tf.ensure_shape(mine, parts.shape)
    rows = tf.cast(rows, tf.float64 if dtype == tf.float64 else tf.float32)
    combined = _combine_all(rows, lengths, f"{name}/adasum/dots", communicator_id)
    result = _libraries.ops().ring_keras_allgather(
        tensor=tf.cast(combined, wire_dtype),
        request_name=f"{name}/adasum/result",
        communicator_id=communicator_id,
        step=step_role(),
    )
    result = tf.cast(tf.ensure_shape(result, parts.shape), dtype)
    return [
        tf.reshape(tf.reshape(part, [-1])[: shape.num_elements()], shape)
        for part, shape in zip(tf.split(result, lengths, axis=1), shapes, strict=True)
    ]


def _in_parts(tensor: tf.Tensor, size: int, length: int) -> tf.Tensor:
    flat = tf.reshape(tensor, [-1])
    padding = size * length - tensor.shape.num_elements()
    return tf.reshape(tf.pad(flat, [[0, padding]]), [size, length])


def _combine_all(
    rows: tf.Tensor, lengths: list[int], name: str, communicator_id: int
) -> tf.Tensor:
    """Combines a row per rank into one row, which has rank 1 like a scalar's."""
    size = rows.shape[0]
    power = 1 << (size.bit_length() - 1)
    if size > power:
        extra = size - power
        folded = _combine(
            rows[:extra], rows[power:], lengths, f"{name}/extra", communicator_id
        )
        rows = tf.concat([folded, rows[extra:power]], axis=0)
    while rows.shape[0] > 1:
        rows = _combine(
            rows[0::2], rows[1::2], lengths, f"{name}/{rows.shape[0]}", communicator_id
        )
    return rows


def _combine(
    left: tf.Tensor,
    right: tf.Tensor,
    lengths: list[int],
    name: str,
    communicator_id: int,
) -> tf.Tensor:
    """Combines rows pair by pair; a row holds this rank's part of every tensor."""
    left_parts = tf.split(left, lengths, axis=1)
    right_parts = tf.split(right, lengths, axis=1)
    # [3, tensors, pairs]: this rank's share of a.b, a.a and b.b.
    shares = tf.stack(
        [
            tf.stack([_dot(a, b) for a, b in zip(first, second, strict=True)])
            for first, second in (
                (left_parts, right_parts),
                (left_parts, left_parts),
                (right_parts, right_parts),
            )
        ]
    )
    one = tf.constant(1.0, tf.float64)
    dots = _libraries.ops().ring_keras_allreduce(
        tensor=shares,
        prescale=one,
        postscale=one,
        reduce_op=ReduceOp.SUM.value,
        request_name=name,
        communicator_id=communicator_id,
        step=step_role(),
    )
    across, left_norm, right_norm = tf.unstack(tf.ensure_shape(dots, shares.shape))
    # A tensor of zeros leaves the other one as it is.
    left_factors = tf.cast(one - 0.5 * _divided(across, left_norm), left.dtype)
    right_factors = tf.cast(one - 0.5 * _divided(across, right_norm), right.dtype)
    return tf.concat(
        [
            a * left_factors[index, :, None] + b * right_factors[index, :, None]
            for index, (a, b) in enumerate(zip(left_parts, right_parts, strict=True))
        ],
        axis=1,
    )


def _divided(numerator: tf.Tensor, denominator: tf.Tensor) -> tf.Tensor:
    return tf.math.divide_no_nan(numerator, denominator)


def _dot(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """Row by row."""
    return tf.reduce_sum(tf.cast(a, tf.float64) * tf.cast(b, tf.float64), axis=1)
