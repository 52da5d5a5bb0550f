"""What ranks that train apart send of what they have, in fewer bits."""

import abc
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

import tensorflow as tf

from ring_keras.job.process_set import ProcessSet

__all__ = [
    "BLOCK",
    "KEPT_NBYTES",
    "SCALE_NBYTES",
    "Int8Wire",
    "Received",
    "Shapes",
    "ThinWire",
    "TopKWire",
    "count_of",
    "largest_count",
    "own_part",
    "rows_of_rank",
]

Shapes: TypeAlias = Sequence[tf.TensorShape]
"""Of the values of a meeting, all known."""

BLOCK = 256
"""Values that have one scale in int8."""

SCALE_NBYTES = 4

KEPT_NBYTES = 8
"""A place and a value."""

_KEPT_OF = 32
"""Of so many values of a variable top-k sends one."""


class Received(NamedTuple):
    """The kind of tensor that an exchange gives."""

    shape: tf.TensorShape
    dtype: tf.DType


class ThinWire(abc.ABC):
    """What ranks send of values, and what stays: of which residuals are made.

    Ranks begin, exchange what that gives, go on with what comes, exchange that, and so
    forth; then they end. All take lists of values of static shapes, alike on all ranks.
    """

    exchanges: tuple[Literal["allgather", "alltoall"], ...]

    @abc.abstractmethod
    def begin(
        self,
        values: Sequence[tf.Tensor],
        residuals: Sequence[tf.Tensor],
        share: tf.Tensor,
        process_set: ProcessSet,
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """What this rank sends of its `own_part`, and what is left of that.

        Args:
            values: See `average_thinly`, like the next two.
            residuals: See there.
            share: See there.
            process_set: The ranks that take part.
        """

    def go_on(
        self,
        received: tf.Tensor,
        left: Sequence[tf.Tensor],
        process_set: ProcessSet,
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """What it sends next, and what is left then."""
        raise NotImplementedError  # Of a wire with one exchange.

    @abc.abstractmethod
    def end(
        self, received: tf.Tensor, like: Shapes, process_set: ProcessSet
    ) -> list[tf.Tensor]:
        """The sums of all ranks' values, bitwise equal on every rank."""

    @abc.abstractmethod
    def received(self, number: int, like: Shapes, size: int) -> Received:
        """What comes of exchange `number` among so many ranks."""


class Int8Wire(ThinWire):
    """Each rank adds up its part of all values in float32, and sends the sum to all.

    So a rank sends, and receives, a quarter of the bytes that float32 takes.
    """

    exchanges = ("alltoall", "allgather")

    def received(self, number: int, like: Shapes, size: int) -> Received:
        """Both times as many rows as there are."""
        shape = [rows_of_rank(like, size) * size, BLOCK + SCALE_NBYTES]
        return Received(tf.TensorShape(shape), tf.int8)


class TopKWire(ThinWire):
    """Each rank sends the largest of each variable, with their places, to all."""

    exchanges = ("allgather",)

    def received(self, number: int, like: Shapes, size: int) -> Received:
        """Of each rank a row of places and one of values."""
        count = sum(largest_count(count_of(shape)) for shape in like)
        return Received(tf.TensorShape([size, 2, count]), tf.int32)


def own_part(
    values: Sequence[tf.Tensor], residuals: Sequence[tf.Tensor], share: tf.Tensor
) -> list[tf.Tensor]:
    """What a rank has to say of an average: its part, and what it has not said yet."""
    share = tf.cast(share, tf.float32)
    return [
        share * tf.cast(value, tf.float32) + residual
        for value, residual in zip(values, residuals, strict=True)
    ]


def rows_of_rank(like: Shapes, size: int) -> int:
    """How many blocks each of some ranks adds up."""
    return -(-sum(map(count_of, like)) // (BLOCK * size))


def largest_count(count: int) -> int:
    """How many of so many values top-k sends."""
    return -(-count // _KEPT_OF)


def count_of(shape: tf.TensorShape) -> int:
    """How many elements."""
    return int(shape.num_elements())
