"""How what ranks average at a meeting travels in fewer bits than it has.

What the bits cannot say stays with the rank that sends, and is added to what it has at
the next meeting (error feedback). Nothing is lost by that: at any time the ranks'
residuals add up to what the averages so far lack.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ring_keras.job.process_set import ProcessSet
from ring_keras.ops.allgather import allgather
from ring_keras.ops.alltoall import alltoall

__all__ = [
    "BLOCK",
    "KEPT_OF",
    "THIN_WIRES",
    "WIRES",
    "average_thinly",
    "largest_count",
    "sent_nbytes",
]

BLOCK = 256
"""Values that have one scale in int8."""

KEPT_OF = 32
"""Of so many values of a variable top-k sends one."""

_LEVELS = 127
_PER_LEVEL = np.float32(1 / _LEVELS)
_SCALE_NBYTES = 4
_KEPT_NBYTES = 8
"""A place and a value."""


def average_thinly(
    wire: str,
    values: Sequence[tf.Tensor],
    residuals: Sequence[tf.Tensor],
    share: tf.Tensor,
    process_set: ProcessSet,
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Averages the ranks' values; collective, in a step that is open.

    Args:
        wire: One of `THIN_WIRES`.
        values: Of static shapes, alike on all ranks.
        residuals: What the call before has returned; like `values`, in float32.
        share: This rank's part of the average; all ranks' add up to 1, or are 0.
        process_set: The ranks that take part.

    Returns:
        The averages, bitwise equal on every rank, and the residuals.
    """
    share = tf.cast(share, tf.float32)
    own = [
        share * tf.cast(value, tf.float32) + residual
        for value, residual in zip(values, residuals, strict=True)
    ]
    sums, left = THIN_WIRES[wire](own, process_set)
    averages = [tf.cast(s, v.dtype) for s, v in zip(sums, values, strict=True)]
    return averages, left


def _sum_in_int8(
    values: list[tf.Tensor], process_set: ProcessSet
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Each rank adds up its part of all values in float32, and sends the sum to all.

    So a rank sends, and receives, a quarter of the bytes that float32 takes.
    """
    size, rank = process_set.size(), process_set.rank()
    of_rank = _rows_of_rank(sum(map(_count, values)), size)
    blocks = _in_blocks(values, of_rank * size)
    sent = _quantized(blocks)
    received = alltoall(sent, name="far_apart/parts", process_set=process_set)
    parts = tf.reshape(received, [size, of_rank, BLOCK + _SCALE_NBYTES])
    total = _sum_in_order(
        size,
        tf.zeros([of_rank, BLOCK]),
        lambda total, which: total + _dequantized(parts[which]),
    )
    result = _quantized(total)
    gathered = allgather(result, name="far_apart/sums", process_set=process_set)
    gathered = tf.ensure_shape(gathered, sent.shape)
    left = blocks - _dequantized(sent)
    own = slice(rank * of_rank, (rank + 1) * of_rank)
    not_said = total - _dequantized(result)
    left = tf.concat(
        [left[: own.start], left[own] + not_said, left[own.stop :]], axis=0
    )
    return _out_of_blocks(_dequantized(gathered), values), _out_of_blocks(left, values)


def _rows_of_rank(count: int, size: int) -> int:
    """Of so many values each rank adds up so many blocks."""
    return -(-count // (BLOCK * size))


def _in_blocks(values: list[tf.Tensor], rows: int) -> tf.Tensor:
    padding = tf.zeros([rows * BLOCK - sum(map(_count, values))])
    flat = [tf.reshape(value, [-1]) for value in values]
    return tf.reshape(tf.concat([*flat, padding], axis=0), [rows, BLOCK])


def _out_of_blocks(blocks: tf.Tensor, like: list[tf.Tensor]) -> list[tf.Tensor]:
    return _divided(tf.reshape(blocks, [-1])[: sum(map(_count, like))], like)


def _quantized(blocks: tf.Tensor) -> tf.Tensor:
    """Rows of int8, and behind each its scale."""
    finite = tf.reduce_all(tf.math.is_finite(blocks), axis=1, keepdims=True)
    # TensorFlow may make such a product of a division by a constant.
    scale = tf.reduce_max(tf.abs(blocks), axis=1, keepdims=True) * _PER_LEVEL
    levels = tf.round(tf.math.divide_no_nan(blocks, scale))
    # Scales below the smallest normal number are not exact.
    levels = tf.clip_by_value(levels, -_LEVELS, _LEVELS)
    levels = tf.cast(tf.where(finite, levels, 0.0), tf.int8)
    # A NaN is everybody's, as in any average.
    scale = tf.where(finite, scale, np.float32("nan"))
    scale_bytes = tf.reshape(tf.bitcast(scale, tf.int8), [-1, _SCALE_NBYTES])
    return tf.concat([levels, scale_bytes], axis=1)


def _dequantized(rows: tf.Tensor) -> tf.Tensor:
    scale = tf.bitcast(tf.reshape(rows[:, BLOCK:], [-1, 1, _SCALE_NBYTES]), tf.float32)
    return tf.cast(rows[:, :BLOCK], tf.float32) * scale


def _sum_largest(
    values: list[tf.Tensor], process_set: ProcessSet
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Each rank sends the largest of each variable, with their places, to all."""
    size = process_set.size()
    count = sum(map(_count, values))
    places, begin = [], 0
    for value in values:
        flat = tf.reshape(value, [-1])
        # What is not finite goes first, and so is everybody's.
        magnitude = tf.where(tf.math.is_finite(flat), tf.abs(flat), np.float32("inf"))
        _, indices = tf.math.top_k(magnitude, largest_count(_count(value)))
        places.append(begin + indices)
        begin += _count(value)
    where = tf.concat(places, axis=0)
    flat = tf.concat([tf.reshape(value, [-1]) for value in values], axis=0)
    largest = tf.gather(flat, where)
    sent = tf.stack([where, tf.bitcast(largest, tf.int32)])[tf.newaxis]
    received = allgather(sent, name="far_apart/largest", process_set=process_set)
    received = tf.ensure_shape(received, [size, *sent.shape[1:]])
    total = _sum_in_order(
        size,
        tf.zeros([count]),
        lambda total, which: tf.tensor_scatter_nd_add(
            total,
            received[which, 0][:, tf.newaxis],
            tf.bitcast(received[which, 1], tf.float32),
        ),
    )
    left = tf.tensor_scatter_nd_update(
        flat, where[:, tf.newaxis], tf.zeros_like(largest)
    )
    return _divided(total, values), _divided(left, values)


def largest_count(count: int) -> int:
    """How many of so many values top-k sends."""
    return -(-count // KEPT_OF)


def sent_nbytes(wire: str, values: Sequence[Any], size: int) -> float:
    """The bytes that each of some senders sends to the others in one average.

    Of the algorithms for large tensors, without headers: an allreduce sends
    2 (size - 1) / size of what it reduces.

    Args:
        wire: One of `WIRES`.
        values: What is averaged, with dtypes and static shapes.
        size: How many send.
    """
    counts = [math.prod(value.shape) for value in values]
    if wire == "int8":
        rows = _rows_of_rank(sum(counts), size)
        return 2 * (size - 1) * rows * (BLOCK + _SCALE_NBYTES)
    if wire == "top-k":
        return (size - 1) * _KEPT_NBYTES * sum(map(largest_count, counts))
    dtypes = [tf.as_dtype(value.dtype) for value in values]
    if wire == "bfloat16":
        dtypes = [tf.bfloat16 if one == tf.float32 else one for one in dtypes]
    nbytes = sum(c * one.size for c, one in zip(counts, dtypes, strict=True))
    return 2 * (size - 1) / size * float(nbytes)


def _sum_in_order(
    size: int, zeros: tf.Tensor, add: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
) -> tf.Tensor:
    """Adds what comes from each rank, from the first to the last."""
    _, total = tf.while_loop(
        lambda which, _: which < size,
        lambda which, total: (which + 1, add(total, which)),
        (tf.constant(0), zeros),
        parallel_iterations=1,
        maximum_iterations=size,
    )
    return total


def _divided(flat: tf.Tensor, like: list[tf.Tensor]) -> list[tf.Tensor]:
    parts = tf.split(flat, list(map(_count, like)))
    return [tf.reshape(p, v.shape) for p, v in zip(parts, like, strict=True)]


def _count(value: tf.Tensor) -> int:
    return int(value.shape.num_elements())


THIN_WIRES = {"int8": _sum_in_int8, "top-k": _sum_largest}
"""Those that leave residuals."""

WIRES = ("float32", "bfloat16", *THIN_WIRES)
