"""How what ranks average at a meeting travels in fewer bits than it has.

What the bits cannot say stays with the rank that sends, and is added to what it has at
the next meeting (error feedback). Nothing is lost by that: at any time the ranks'
residuals add up to what the averages so far lack.
"""

import abc
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

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
    "Shapes",
    "ThinWire",
    "average_thinly",
    "largest_count",
    "own_part",
    "sent_nbytes",
]

Shapes: TypeAlias = Sequence[tf.TensorShape]
"""Of the values of a meeting, all known."""

BLOCK = 256
"""Values that have one scale in int8."""

KEPT_OF = 32
"""Of so many values of a variable top-k sends one."""

_LEVELS = 127
_PER_LEVEL = np.float32(1 / _LEVELS)
_SCALE_NBYTES = 4
_KEPT_NBYTES = 8
"""A place and a value."""


class ThinWire(abc.ABC):
    """What ranks send of values, and what stays: of which residuals are made.

    Ranks begin, exchange what that gives, go on with what comes, exchange that, and so
    forth; then they end. All take lists of values of static shapes, alike on all ranks.
    """

    exchanges: tuple[Literal["allgather", "alltoall"], ...]

    @abc.abstractmethod
    def begin(
        self, values: Sequence[tf.Tensor], process_set: ProcessSet
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """What this rank sends, and what is left of its values."""

    def go_on(
        self, received: tf.Tensor, like: Shapes, process_set: ProcessSet
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """What it sends next, and what that leaves besides."""
        raise NotImplementedError  # Of a wire with one exchange.

    @abc.abstractmethod
    def end(
        self, received: tf.Tensor, like: Shapes, process_set: ProcessSet
    ) -> list[tf.Tensor]:
        """The sums of all ranks' values, bitwise equal on every rank."""

    @abc.abstractmethod
    def received(self, number: int, like: Shapes, size: int) -> "Received":
        """What comes of exchange `number` among so many ranks."""


class Received(NamedTuple):
    """The kind of tensor that an exchange gives."""

    shape: tf.TensorShape
    dtype: tf.DType


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
    thin = THIN_WIRES[wire]
    like = [value.shape for value in values]
    message, left = thin.begin(own_part(values, residuals, share), process_set)
    received = _exchanged(thin, 0, message, like, process_set)
    for number in range(1, len(thin.exchanges)):
        message, besides = thin.go_on(received, like, process_set)
        left = [one + more for one, more in zip(left, besides, strict=True)]
        received = _exchanged(thin, number, message, like, process_set)
    sums = thin.end(received, like, process_set)
    return [tf.cast(s, v.dtype) for s, v in zip(sums, values, strict=True)], left


def _exchanged(
    thin: ThinWire,
    number: int,
    message: tf.Tensor,
    like: Shapes,
    process_set: ProcessSet,
) -> tf.Tensor:
    kind = thin.exchanges[number]
    exchange = {"alltoall": alltoall, "allgather": allgather}[kind]
    received = exchange(message, name=f"far_apart/{kind}", process_set=process_set)
    shape, _ = thin.received(number, like, process_set.size())
    return tf.ensure_shape(received, shape)


def own_part(
    values: Sequence[tf.Tensor], residuals: Sequence[tf.Tensor], share: tf.Tensor
) -> list[tf.Tensor]:
    """What a rank has to say of an average: its part, and what it has not said yet."""
    share = tf.cast(share, tf.float32)
    return [
        share * tf.cast(value, tf.float32) + residual
        for value, residual in zip(values, residuals, strict=True)
    ]


class _Int8(ThinWire):
    """Each rank adds up its part of all values in float32, and sends the sum to all.

    So a rank sends, and receives, a quarter of the bytes that float32 takes.
    """

    exchanges = ("alltoall", "allgather")

    def begin(
        self, values: Sequence[tf.Tensor], process_set: ProcessSet
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """All blocks, those for the first rank first."""
        like = [value.shape for value in values]
        size = process_set.size()
        blocks = _in_blocks(values, _rows_of_rank(like, size) * size)
        sent = _quantized(blocks)
        return sent, _out_of_blocks(blocks - _dequantized(sent), like)

    def go_on(
        self, received: tf.Tensor, like: Shapes, process_set: ProcessSet
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """The sum of this rank's blocks."""
        size, rank = process_set.size(), process_set.rank()
        rows = _rows_of_rank(like, size)
        parts = tf.reshape(received, [size, rows, BLOCK + _SCALE_NBYTES])
        total = _sum_in_order(
            size,
            tf.zeros([rows, BLOCK]),
            lambda total, which: total + _dequantized(parts[which]),
        )
        result = _quantized(total)
        around = [[rank * rows, (size - rank - 1) * rows], [0, 0]]
        not_said = tf.pad(total - _dequantized(result), around)
        return result, _out_of_blocks(not_said, like)

    def end(
        self, received: tf.Tensor, like: Shapes, process_set: ProcessSet
    ) -> list[tf.Tensor]:
        """All ranks' sums."""
        return _out_of_blocks(_dequantized(received), like)

    def received(self, number: int, like: Shapes, size: int) -> Received:
        """Both times as many rows as there are."""
        shape = [_rows_of_rank(like, size) * size, BLOCK + _SCALE_NBYTES]
        return Received(tf.TensorShape(shape), tf.int8)


def _rows_of_rank(like: Shapes, size: int) -> int:
    return -(-sum(map(_count, like)) // (BLOCK * size))


def _in_blocks(values: Sequence[tf.Tensor], rows: int) -> tf.Tensor:
    padding = tf.zeros([rows * BLOCK - sum(_count(value.shape) for value in values)])
    flat = [tf.reshape(value, [-1]) for value in values]
    return tf.reshape(tf.concat([*flat, padding], axis=0), [rows, BLOCK])


def _out_of_blocks(blocks: tf.Tensor, like: Shapes) -> list[tf.Tensor]:
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


class _TopK(ThinWire):
    """Each rank sends the largest of each variable, with their places, to all."""

    exchanges = ("allgather",)

    def begin(
        self, values: Sequence[tf.Tensor], process_set: ProcessSet
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Their places in all values, and the values."""
        like = [value.shape for value in values]
        places, begin = [], 0
        for value in values:
            flat = tf.reshape(value, [-1])
            # What is not finite goes first, and so is everybody's.
            magnitude = tf.where(
                tf.math.is_finite(flat), tf.abs(flat), np.float32("inf")
            )
            _, indices = tf.math.top_k(magnitude, largest_count(_count(value.shape)))
            places.append(begin + indices)
            begin += _count(value.shape)
        where = tf.concat(places, axis=0)
        flat = tf.concat([tf.reshape(value, [-1]) for value in values], axis=0)
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
            tf.zeros([sum(map(_count, like))]),
            lambda total, which: tf.tensor_scatter_nd_add(
                total,
                received[which, 0][:, tf.newaxis],
                tf.bitcast(received[which, 1], tf.float32),
            ),
        )
        return _divided(total, like)

    def received(self, number: int, like: Shapes, size: int) -> Received:
        """Of each rank a row of places and one of values."""
        count = sum(largest_count(_count(shape)) for shape in like)
        return Received(tf.TensorShape([size, 2, count]), tf.int32)


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
        rows = _rows_of_rank([tf.TensorShape(one.shape) for one in values], size)
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


def _divided(flat: tf.Tensor, like: Shapes) -> list[tf.Tensor]:
    parts = tf.split(flat, list(map(_count, like)))
    return [tf.reshape(p, shape) for p, shape in zip(parts, like, strict=True)]


def _count(shape: tf.TensorShape) -> int:
    return int(shape.num_elements())


THIN_WIRES: dict[str, ThinWire] = {"int8": _Int8(), "top-k": _TopK()}
"""Those that leave residuals."""

WIRES = ("float32", "bfloat16", *THIN_WIRES)
