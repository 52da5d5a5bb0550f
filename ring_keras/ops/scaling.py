"""Factors before and after a reduction, where it is not the engine's own."""

import tensorflow as tf

__all__ = ["scaled"]


def scaled(values: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    """Like the engine's scaling: integers in float64, rounded toward zero.

    As it, it leaves alone what it would multiply by 1, if that is known.
    """
    if tf.get_static_value(factor) == 1:
        return values
    if values.dtype.is_integer:
        return tf.cast(tf.cast(values, tf.float64) * factor, values.dtype)
    wide = tf.float32 if values.dtype.size == 2 else values.dtype
    return tf.cast(tf.cast(values, wide) * tf.cast(factor, wide), values.dtype)
