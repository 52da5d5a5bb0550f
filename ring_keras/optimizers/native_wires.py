"""The wires that leave residuals, by ops of ours: each in one pass over memory or two.

They give the bits that TensorFlow's give on the same thread, and send the same: but for
which NaN a sum of two is, and the order of what top-k sends of a variable.
"""

from collections.abc import Sequence

import tensorflow as tf

from ring_keras import _libraries
from ring_keras.job.process_set import ProcessSet
from ring_keras.optimizers.thin_wire import (
    Int8Wire,
    Shapes,
    TopKWire,
    count_of,
    largest_count,
    rows_of_rank,
)

__all__ = ["NativeInt8", "NativeTopK"]


class NativeInt8(Int8Wire):
    """Of blocks as they lie in the variables."""

    def begin(
        self,
        values: Sequence[tf.Tensor],
        residuals: Sequence[tf.Tensor],
        share: tf.Tensor,
        process_set: ProcessSet,
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """All blocks, those for the first rank first."""
        size = process_set.size()
        message, left = _libraries.ops().ring_keras_quantize(
            values=_as_float32(values),
            residuals=residuals,
            share=tf.cast(share, tf.float32),
            rows=rows_of_rank([value.shape for value in values], size) * size,
        )
        return message, left

    def go_on(
        self,
        received: tf.Tensor,
        left: Sequence[tf.Tensor],
        process_set: ProcessSet,
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """The sum of this rank's blocks."""
        message, left_now = _libraries.ops().ring_keras_sum_quantized(
            messages=received,
            left=left,
            rows=rows_of_rank([one.shape for one in left], process_set.size()),
            rank=process_set.rank(),
        )
        return message, left_now

    def end(
        self, received: tf.Tensor, like: Shapes, process_set: ProcessSet
    ) -> list[tf.Tensor]:
        """All ranks' sums."""
        sums: list[tf.Tensor] = _libraries.ops().ring_keras_dequantize(
            message=received, N=len(like), shapes=list(like)
        )
        return sums


class NativeTopK(TopKWire):
    """By counting; what it sends of a variable is in the order of places."""

    def begin(
        self,
        values: Sequence[tf.Tensor],
        residuals: Sequence[tf.Tensor],
        share: tf.Tensor,
        process_set: ProcessSet,
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Their places in all values, and the values."""
        message, left = _libraries.ops().ring_keras_take_largest(
            values=_as_float32(values),
            residuals=residuals,
            share=tf.cast(share, tf.float32),
            kept=_kept_of([value.shape for value in values]),
        )
        return message, left

    def end(
        self, received: tf.Tensor, like: Shapes, process_set: ProcessSet
    ) -> list[tf.Tensor]:
        """Each value is the sum of those that have sent it."""
        sums: list[tf.Tensor] = _libraries.ops().ring_keras_sum_largest(
            messages=received, N=len(like), shapes=list(like), kept=_kept_of(like)
        )
        return sums


def _as_float32(values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    return [tf.cast(value, tf.float32) for value in values]


def _kept_of(like: Shapes) -> list[int]:
    return [largest_count(count_of(shape)) for shape in like]
