"""The wires that leave residuals, by TensorFlow's ops: for GPUs, and for XLA."""

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from ring_keras.job.process_set import ProcessSet
from ring_keras.optimizers.thin_wire import (
    BLOCK,
    SCALE_NBYTES,
    Int8Wire,
    Shapes,
    TopKWire,
    count_of,
    largest_count,
    own_part,
    rows_of_rank,
)

__all__ = ["GraphInt8", "GraphTopK"]

_LEVELS = 127
_PER_LEVEL = np.float32(1 / _LEVELS)


class GraphInt8(Int8Wire):
    """Of blocks as rows of a matrix."""

    def begin(
        self,
        values: Sequence[tf.Tensor],
        residuals: Sequence[tf.Tensor],
        share: tf.Tensor,
        process_set: ProcessSet,
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """All blocks, those for the first rank first."""
        like = [value.shape for value in values]
        size = process_set.size()
        part = own_part(values, residuals, share)
        blocks = _in_blocks(part, rows_of_rank(like, size) * size)
        sent = _quantized(blocks)
        return sent, _out_of_blocks(blocks - _dequantized(sent), like)

    def go_on(
        self,
        received: tf.Tensor,
        left: Sequence[tf.Tensor],
        process_set: ProcessSet,
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """The sum of this rank's blocks."""
        like = [one.shape for one in left]
        size, rank = process_set.size(), process_set.rank()
        rows = rows_of_rank(like, size)
        parts = tf.reshape(received, [size, rows, BLOCK + SCALE_NBYTES])
        total = _sum_in_order(
            size,
            tf.zeros([rows, BLOCK]),
            lambda total, which: total + _dequantized(parts[which]),
        )
        result = _quantized(total)
        around = [[rank * rows, (size - rank - 1) * rows], [0, 0]]
        not_said = tf.pad(total - _dequantized(result), around)
        besides = _out_of_blocks(not_said, like)
        return result, [one + more for one, more in zip(left, besides, strict=True)]

    def end(
        self, received: tf.Tensor, like: Shapes, process_set: ProcessSet
    ) -> list[tf.Tensor]:
        """All ranks' sums."""
        return _out_of_blocks(_dequantized(received), like)


def _in_blocks(values: Sequence[tf.Tensor], rows: int) -> tf.Tensor:
    padding = tf.zeros([rows * BLOCK - sum(count_of(value.shape) for value in values)])
    flat = [tf.reshape(value, [-1]) for value in values]
    return tf.reshape(tf.concat([*flat, padding], axis=0), [rows, BLOCK])


def _out_of_blocks(blocks: tf.Tensor, like: Shapes) -> list[tf.Tensor]:
    return _divided(tf.reshape(blocks, [-1])[: sum(map(count_of, like))], like)


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
    scale_bytes = tf.reshape(tf.bitcast(scale, tf.int8), [-1, SCALE_NBYTES])
    return tf.concat([levels, scale_bytes], axis=1)


def _dequantized(rows: tf.Tensor) -> tf.Tensor:
    scale = tf.bitcast(tf.reshape(rows[:, BLOCK:], [-1, 1, SCALE_NBYTES]), tf.float32)
    return tf.cast(rows[:, :BLOCK], tf.float32) * scale


class GraphTopK(TopKWire):
    """By sorting."""

    def begin(
        self,
        values: Sequence[tf.Tensor],
        residuals: Sequence[tf.Tensor],
        share: tf.Tensor,
        process_set: ProcessSet,
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Their places in all values, and the values."""
        like = [value.shape for value in values]
        part = own_part(values, residuals, share)
        places, begin = [], 0
        for value in part:
            flat = tf.reshape(value, [-1])
            # What is not finite goes first, and so is everybody's.
            magnitude = tf.where(
                tf.math.is_finite(flat), tf.abs(flat), np.float32("inf")
            )
            _, indices = tf.math.top_k(magnitude, largest_count(count_of(value.shape)))
            places.append(begin + indices)
            begin += count_of(value.shape)
        where = tf.concat(places, axis=0)
        flat = tf.concat([tf.reshape(value, [-1]) for value in part], axis=0)
        largest = tf.gather(flat, where)
        left = tf.tensor_scatter_nd_update(
            flat, where[:, tf.newaxis], tf.zeros_like(largest)
        )
        sent = tf.stack([where, tf.bitcast(largest, tf.int32)])[tf.newaxis]
        return sent, _divided(left, like)

    def end(
        self, received: tf.Tensor, like: Shapes, process_set: ProcessSet
    ) -> list[tf.Tensor]:
        """Each value is the sum of those that have sent it."""
        total = _sum_in_order(
            process_set.size(),
            tf.zeros([sum(map(count_of, like))]),
            lambda total, which: tf.tensor_scatter_nd_add(
                total,
                received[which, 0][:, tf.newaxis],
                tf.bitcast(received[which, 1], tf.float32),
            ),
        )
        return _divided(total, like)


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


def _divided(flat: tf.Tensor, like: Shapes) -> list[tf.Tensor]:
    parts = tf.split(flat, list(map(count_of, like)))
    return [tf.reshape(p, shape) for p, shape in zip(parts, like, strict=True)]
