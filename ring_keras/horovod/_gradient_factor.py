"""Gradients of collectives as Horovod has them.

Those of ring_keras are the gradients of the sum of the ranks' losses. Horovod's are
of their mean for allgather and broadcast, and of a reduce-scatter they are `size`
times those of the sum, of an average as of a sum. Training depends on it: a
contrastive loss over gathered rows would get gradients `size` times as large.
"""

from collections.abc import Callable

import tensorflow as tf

__all__ = ["with_gradient_times"]


def with_gradient_times(factor: float, tensor: tf.Tensor) -> tf.Tensor:
    """The tensor, whose gradient is `factor` times what it would be."""
    if factor == 1.0 or not tensor.dtype.is_floating:
        return tensor

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def identity(
        value: tf.Tensor,
    ) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        return tf.identity(
            value
        ), lambda upstream: upstream * tf.cast(factor, upstream.dtype)

    scaled: tf.Tensor = identity(tensor)
    return scaled
