"""Averages of integers, which ring_keras itself refuses."""

import tensorflow as tf

from ring_keras.ops.arguments import to_factor
from ring_keras.ops.scaling import scaled
from ring_keras.values.reduce_op import Average, ReduceOp

__all__ = ["average_of_sum", "averages_integers", "widened"]


def averages_integers(tensor: tf.Tensor, op: ReduceOp) -> bool:
    """Whether this is the module for it."""
    return bool(op == Average and tensor.dtype.is_integer)


def widened(tensor: tf.Tensor) -> tf.Tensor:
    """In a type that holds the sum over all ranks; 64 bits are the most there is."""
    return tf.cast(tensor, tf.int64 if tensor.dtype.size >= 4 else tf.int32)


def average_of_sum(
    total: tf.Tensor, size: int, postscale_factor: float, dtype: tf.DType
) -> tf.Tensor:
    """The sum over the number of ranks, rounded toward zero as Horovod does."""
    if postscale_factor == 1.0:
        return tf.cast(tf.truncatediv(total, tf.cast(size, total.dtype)), dtype)
    return tf.cast(scaled(total, to_factor(postscale_factor) / size), dtype)
