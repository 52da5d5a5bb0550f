"""Momentum that holds gradients times the learning rate of their time."""

from collections.abc import Sequence

import keras
import tensorflow as tf

from ring_keras import keras_internals as internals

__all__ = ["scale_momentum"]


def scale_momentum(
    optimizer: keras.optimizers.Optimizer, factor: tf.Tensor | float
) -> None:
    """Has earlier gradients count as if they had been taken with another rate.

    Nothing for optimizers other than `SGD` and `RMSprop`. Source: Goyal et al. 2017,
    section 3, arXiv:1706.02677.

    Args:
        optimizer: One that applies gradients itself, or a `LossScaleOptimizer`.
        factor: The new rate over the old one; a number or a scalar tensor.
    """
    velocities = internals.velocities(optimizer)
    if velocities:
        variables = [velocity.value for velocity in velocities]
        _scale(variables, tf.convert_to_tensor(factor, tf.float32))


@tf.function(autograph=False)  # type: ignore[untyped-decorator]
def _scale(variables: Sequence[tf.Variable], factor: tf.Tensor) -> None:
    for variable in variables:
        variable.assign(variable * tf.cast(factor, variable.dtype))
