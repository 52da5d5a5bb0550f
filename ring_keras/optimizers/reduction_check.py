"""Compares checksums of what ranks bring to a reduction with what comes of it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from ring_keras import _libraries
from ring_keras.errors import translated
from ring_keras.job.job import current_job
from ring_keras.ops.allreduce import allreduce
from ring_keras.optimizers.buckets import BucketPlan, bucket_name
from ring_keras.optimizers.checksums import bits_checksum, in_blocks
from ring_keras.optimizers.gradient_values import Gradient
from ring_keras.optimizers.reduction_options import ReductionOptions
from ring_keras.optimizers.rounding import Rounding
from ring_keras.optimizers.step_scope import StepWeight
from ring_keras.values.reduce_op import ReduceOp

__all__ = ["ReductionCheck"]


@dataclass(frozen=True)
class _Brought:
    """Of one gradient, by blocks: vectors of float64.

    `sums` and `magnitudes`, of absolute values, are of this rank's part; an element of
    the result is made of all ranks' parts, so `relative` is of all magnitudes.
    """

    sums: tf.Tensor
    magnitudes: tf.Tensor
    relative: np.ndarray[Any, Any]
    absolute: np.ndarray[Any, Any]
    largest: np.ndarray[Any, Any]


@dataclass(frozen=True)
class _Part:
    """A tensor that has been exchanged, and the position of its gradient."""

    index: int
    tensor: tf.Tensor


class ReductionCheck:
    """Of the gradients of one reduction, for RING_KERAS_CHECK_REDUCTIONS.

    Made before they are reduced. See docs/design/0030-checked-reductions.md.

    Args:
        options: What is done with them.
        gradients: What this rank brings; those that are in buckets have a static
            shape.
        plan: Their buckets.
        weight: As for `GradientReducer.reduce`, and so is `factor`.
        factor: Multiplies every result.
    """

    def __init__(
        self,
        options: ReductionOptions,
        gradients: Sequence[Gradient],
        plan: BucketPlan,
        weight: StepWeight | None,
        factor: float,
    ) -> None:
        self._process_set = options.process_set
        self._averages = options.op is ReduceOp.AVERAGE
        self._weight = tf.constant(1.0, tf.float64) if weight is None else weight.amount
        self._before = 1.0 / options.gradient_predivide_factor
        self._after = options.gradient_predivide_factor * factor
        self._bucket_of = {
            index: bucket_name(number)
            for number, bucket in enumerate(plan.buckets)
            for index in bucket.indices
        }
        self._brought: dict[int, _Brought] = {}
        if options.op is ReduceOp.ADASUM:  # Not linear.
            return
        for index in self._bucket_of:
            gradient: Any = gradients[index]
            if gradient.dtype.is_floating:
                self._brought[index] = self._sum(gradient, options)

    @classmethod
    def if_wanted(
        cls,
        options: ReductionOptions,
        gradients: Sequence[Gradient],
        plan: BucketPlan,
        weight: StepWeight | None = None,
        factor: float = 1.0,
    ) -> Optional["ReductionCheck"]:
        """The check; None unless RING_KERAS_CHECK_REDUCTIONS asks for it."""
        if not current_job().config.check_reductions:
            return None
        return cls(options, gradients, plan, weight, factor)

    def checked(
        self, reduced: Sequence[Gradient], names: Mapping[int, str]
    ) -> list[Gradient]:
        """What has come of the reduction, if it is right; a collective.

        Args:
            reduced: In the order of what was brought.
            names: Of those that the ranks have exchanged, by position.

        Raises:
            CorruptDataError: On every rank, if it is not.
        """
        result = list(reduced)
        if not names:
            return result
        parts = [
            _Part(index, part)
            for index in names
            for part in _tensors_of(reduced[index])
        ]
        bits, sums = self._compare(parts)
        lines = [
            f"gradient '{names[part.index]}' "
            f"({self._bucket_of.get(part.index, 'in no bucket')})"
            for part in parts
        ]
        tensors = iter(
            _require_right(
                bits, sums, [part.tensor for part in parts], "\n".join(lines)
            )
        )
        for index in names:
            result[index] = _with_tensors(reduced[index], tensors)
        return result

    def _sum(self, gradient: tf.Tensor, options: ReductionOptions) -> _Brought:
        ranks = options.process_set.size()
        rounding = Rounding.of(gradient.dtype, options.compression, ranks)
        values = in_blocks(gradient)
        blocks, elements = values.shape
        relative, absolute = rounding.of_sum(
            elements, max(self._before, 1.0) * max(abs(self._after), 1.0)
        )
        share = self._weight * self._before if self._averages else self._before
        return _Brought(
            tf.reduce_sum(values, axis=1) * share,
            tf.reduce_sum(tf.abs(values), axis=1) * share,
            np.full(blocks, relative),
            np.full(blocks, absolute),
            np.full(blocks, rounding.largest / ranks),
        )

    def _compare(self, parts: Sequence[_Part]) -> tuple[tf.Tensor, tf.Tensor]:
        """Both matrices of RingKerasCheckReductions, the same on all ranks."""
        size, rank = self._process_set.size(), self._process_set.rank()
        number = tf.constant(1.0 + self._process_set.ranks[rank], tf.float64)
        row = tf.stack([number, *(bits_checksum(part.tensor) for part in parts)])
        rows = tf.one_hot(rank, size, dtype=tf.float64)[:, tf.newaxis] * row
        positions = {part.index: position for position, part in enumerate(parts)}
        came = [
            tf.reduce_sum(in_blocks(parts[positions[index]].tensor), axis=1)
            for index in self._brought
        ]
        brought = self._brought.values()
        vectors = [
            tf.reshape(self._weight, [1]),
            _joined([each.sums for each in brought]),
            _joined([each.magnitudes for each in brought]),
            _joined(came),
            tf.reshape(rows, [-1]),
        ]
        lengths = [vector.shape.num_elements() for vector in vectors]
        total = allreduce(
            tf.concat(vectors, axis=0),
            ReduceOp.SUM,
            name="gradients/check",
            process_set=self._process_set,
        )
        weight, sums, magnitudes, came_of_all, rows = tf.split(total, lengths)
        rows = tf.reshape(rows, [size, 1 + len(parts)])
        # Those that are in join() bring nothing.
        present = tf.math.count_nonzero(rows[:, 0], dtype=tf.float64)
        return rows, self._sums(
            weight if self._averages else tf.ones_like(weight),
            sums,
            magnitudes,
            came_of_all / present,
            [positions[index] for index in self._brought],
        )

    def _sums(
        self,
        divisor: tf.Tensor,
        sums: tf.Tensor,
        magnitudes: tf.Tensor,
        came: tf.Tensor,
        positions: Sequence[int],
    ) -> tf.Tensor:
        """What blocks must add up to, what they do, and how far that may be off."""
        brought = self._brought.values()
        expected = self._after * tf.math.divide_no_nan(sums, divisor)
        size = max(abs(self._after), 1.0) * tf.math.divide_no_nan(magnitudes, divisor)
        tolerance = _fixed([b.relative for b in brought]) * size
        tolerance += _fixed([b.absolute for b in brought])
        may_overflow = size >= _fixed([b.largest for b in brought])
        finite = tf.math.is_finite(expected) & tf.math.is_finite(size)
        known = finite & (tf.math.is_finite(came) | ~may_overflow)
        tensor = [
            np.full(len(b.relative), p) for p, b in zip(positions, brought, strict=True)
        ]
        zero = tf.zeros_like(came)
        return tf.stack(
            [
                _fixed(tensor),
                *(tf.where(known, each, zero) for each in (expected, came, tolerance)),
            ]
        )


@translated()
def _require_right(
    bits: tf.Tensor, sums: tf.Tensor, tensors: list[tf.Tensor], names: str
) -> list[tf.Tensor]:
    return list(
        _libraries.ops().ring_keras_check_reductions(
            bits=bits, sums=sums, tensors=tensors, names=names
        )
    )


def _tensors_of(gradient: Gradient) -> list[tf.Tensor]:
    """What ranks have exchanged of it."""
    if isinstance(gradient, tf.IndexedSlices):
        return [gradient.values, gradient.indices]
    return [gradient]


def _with_tensors(gradient: Gradient, tensors: Iterator[tf.Tensor]) -> Gradient:
    """The gradient, made of the next ones."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(next(tensors), next(tensors), gradient.dense_shape)
    return next(tensors)


def _joined(vectors: Sequence[tf.Tensor]) -> tf.Tensor:
    return tf.concat([tf.zeros([0], tf.float64), *vectors], axis=0)


def _fixed(vectors: Sequence[np.ndarray[Any, Any]]) -> tf.Tensor:
    return tf.constant(np.concatenate([np.zeros(0), *vectors]), tf.float64)
