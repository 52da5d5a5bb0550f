"""By how much sums of a reduction may be off, for rounding alone."""

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import tensorflow as tf

from ring_keras.ops.arguments import to_wire_dtype
from ring_keras.values.compression import Compression

__all__ = ["Rounding"]

# Of one element, besides the additions and the hops, of which there are as many as
# ranks: both factors as numbers of the element's type, both products, to 16 bits and
# back, and two to spare.
_OTHER_ROUNDINGS = 8
_FLOAT64_EPSILON = 2.0**-52


@dataclass(frozen=True)
class Rounding:
    """Of reductions of one type among so many ranks.

    Attributes:
        relative: Times the sum of the absolute values of what is added up, an
            element may be off by that.
        absolute: And by that, in units of the factors: where values vanish.
        largest: If the absolute values of all that is added up are together less than
            that, nothing overflows.
    """

    relative: float
    absolute: float
    largest: float

    @classmethod
    def of(cls, dtype: tf.DType, compression: Compression, ranks: int) -> "Rounding":
        """What holds of floating-point tensors of `dtype`.

        Args:
            dtype: Of the tensors.
            compression: How they travel.
            ranks: At least as many as take part.
        """
        wire_dtype = to_wire_dtype(compression, dtype, "allreduce")
        travels_as = dtype if wire_dtype == "none" else tf.as_dtype(wire_dtype)
        types = dtype, travels_as
        roundings = ranks + _OTHER_ROUNDINGS
        # Before they are added, numbers of 16 bits may be divided by 2 * ranks, so that
        # the sum is in range (`Headroom` in collectives/scaled_reduction.h).
        divided_by = 2 * ranks
        return cls(
            relative=float(np.expm1(roundings * max(map(_epsilon, types))))
            + roundings * _FLOAT64_EPSILON,
            absolute=roundings * divided_by * max(map(_smallest, types)),
            largest=min(float(each.max) for each in types) / 2,
        )

    def of_sum(self, elements: int, factor: float) -> tuple[float, float]:
        """For a sum of reduced elements, which is made in float64.

        Args:
            elements: How many.
            factor: What multiplies them, before the reduction or after it, at most.

        Returns:
            How much of the sum of all absolute values the sum may be off, and by how
            much besides.
        """
        relative = self.relative + elements * _FLOAT64_EPSILON
        return relative, elements * self.absolute * max(1.0, abs(factor))


def _epsilon(dtype: tf.DType) -> float:
    return float(_limits(dtype).eps)


def _smallest(dtype: tf.DType) -> float:
    """What may become 0. In TensorFlow's threads float32's denormals do."""
    limits = _limits(dtype)
    halves = dtype == tf.float16
    return float(limits.smallest_subnormal if halves else limits.smallest_normal)


def _limits(dtype: tf.DType) -> Any:
    return ml_dtypes.finfo(dtype.as_numpy_dtype)  # type: ignore[no-untyped-call]
