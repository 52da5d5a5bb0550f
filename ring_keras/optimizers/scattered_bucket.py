"""Gradients that are reduced for those ranks alone that update their variables.

Where ranks divide an optimizer's state, a rank needs the reduced gradient of its pieces
of variables, and no more. So between hosts half of what an allreduce sends is enough.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Optional, Protocol

import tensorflow as tf

from ring_keras.job.process_set import ProcessSet
from ring_keras.ops.grouped_allreduce import (
    PendingAllreduce,
    allreduce_start,
    allreduce_wait,
)
from ring_keras.ops.shards import Piece, Shard
from ring_keras.optimizers.buckets import Bucket
from ring_keras.optimizers.slices import taken

__all__ = ["OwnPart", "ScatteredBucket"]

# By how much the largest part may exceed a part of the mean size: such a reduction
# takes as long as the largest part, so with twice as much an allreduce is as fast.
_MOST_UNEVEN: Final = 1.5

# Less travels with the ranks' announcements, or as good as.
_LEAST_BYTES: Final = 64 << 10


class OwnPart(NamedTuple):
    """What this rank has of a gradient that is reduced for those who update.

    Attributes:
        values: Of its piece of the variable, in its shape; None if it has no piece.
    """

    values: tf.Tensor | None


class Division(Protocol):
    """Who updates what."""

    def shard(self, variable: Any) -> Shard | None:
        """See `StateDivision`."""


class _Sent(NamedTuple):
    position: int  # Of its rank in the process set.
    gradient: int  # Which it is of all.
    shard: Shard
    piece: Piece


class ScatteredBucket:
    """One bucket of a plan.

    Args:
        parts: What is sent, sorted.
        process_set: The ranks that take part.
    """

    def __init__(self, parts: Sequence[_Sent], process_set: ProcessSet) -> None:
        self._parts = parts
        self._process_set = process_set
        self._pending: PendingAllreduce | None = None

    @classmethod
    def of(
        cls,
        bucket: Bucket,
        sources: Sequence[Any],
        division: Division,
        process_set: ProcessSet,
    ) -> Optional["ScatteredBucket"]:
        """None, on all ranks, if that would not be faster than an allreduce.

        Args:
            bucket: The positions of its gradients, and their bytes.
            sources: The variables of all gradients.
            division: Who updates these.
            process_set: The ranks that take part.
        """
        if bucket.nbytes <= _LEAST_BYTES:
            return None
        parts = []
        for index in bucket.indices:
            shard = division.shard(sources[index])
            if shard is None:
                return None
            parts += [
                _Sent(process_set.position_of(piece.owner), index, shard, piece)
                for piece in shard.pieces
            ]
        parts.sort(key=lambda part: part[:2])
        found = cls(parts, process_set)
        splits = found._splits()
        if max(splits) * len(splits) > _MOST_UNEVEN * sum(splits):
            return None
        return found

    def _splits(self) -> list[int]:
        splits = [0] * self._process_set.size()
        for part in self._parts:
            splits[part.position] += part.piece.end - part.piece.begin
        return splits

    def start(self, gradients: Sequence[tf.Tensor], **options: Any) -> None:
        """Starts the reduction.

        Args:
            gradients: All of the step's.
            options: See `allreduce_start`.
        """
        self._pending = allreduce_start(
            [
                tf.reshape(
                    taken(gradients[part.gradient], part.shard, part.piece), [-1]
                )
                for part in self._parts
            ],
            splits=self._splits(),
            process_set=self._process_set,
            **options,
        )

    def wait(self) -> dict[int, OwnPart]:
        """Of each of its gradients what this rank has."""
        assert self._pending is not None
        (flat,) = allreduce_wait(self._pending, blocks=True)
        found = {part.gradient: OwnPart(None) for part in self._parts}
        begin = 0
        for part in self._parts:
            if part.position == self._process_set.rank():
                end = begin + part.piece.end - part.piece.begin
                shape = part.shard.shape_of(part.piece)
                found[part.gradient] = OwnPart(tf.reshape(flat[begin:end], shape))
                begin = end
        return found
