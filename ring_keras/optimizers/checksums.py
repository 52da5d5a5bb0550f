"""Checksums of tensors: of their values in blocks, and of their bits."""

import functools
import math

import numpy as np
import tensorflow as tf

__all__ = ["bits_checksum", "block_length", "in_blocks"]

# What rounding may be grows with what is summed up, what is sent shrinks.
_BLOCK_ELEMENTS = 1 << 14
# Below 2^53, so that a float64 holds it. A bit of a word of 32 bits, times an odd
# number, is not lost.
_CHECKSUM_MASK = (1 << 48) - 1
_WORDS = {1: tf.int8, 2: tf.int16, 4: tf.int32, 8: tf.int32}


@functools.cache
def block_length(count: int) -> int:
    """How many of `count` elements make a block; divides `count`."""
    lengths = {count}
    for divisor in range(1, math.isqrt(count) + 1):
        if count % divisor == 0:
            lengths |= {divisor, count // divisor}
    return min(length for length in lengths if length >= min(count, _BLOCK_ELEMENTS))


def in_blocks(tensor: tf.Tensor) -> tf.Tensor:
    """A tensor of static shape as float64: a row for each block."""
    return tf.cast(tf.reshape(tensor, _shape_in_blocks(tensor)), tf.float64)


def bits_checksum(tensor: tf.Tensor) -> tf.Tensor:
    """48 bits, as a scalar of float64; another if one word of the tensor is.

    The words of a block are added, and blocks count by odd factors, so that what
    is in the wrong place is seen too if that is another block.
    """
    blocks, length = _shape_in_blocks(tensor)
    words = tf.bitcast(tensor, _WORDS[tensor.dtype.size])
    words_of_each = max(1, tensor.dtype.size // words.dtype.size)
    shape = [blocks, length if length == -1 else length * words_of_each]
    words = tf.cast(tf.reshape(words, shape), tf.int64)
    factors = tf.constant(2 * np.arange(blocks, dtype=np.int64) + 1)
    checksum = tf.reduce_sum(tf.reduce_sum(words, axis=1) * factors)
    return tf.cast(tf.bitwise.bitwise_and(checksum, _CHECKSUM_MASK), tf.float64)


def _shape_in_blocks(tensor: tf.Tensor) -> list[int]:
    count = tensor.shape.num_elements()
    if count is None:  # Slices of all ranks, of which there may be any number.
        return [1, -1]
    return [count // block_length(count), block_length(count)] if count else [1, 0]
