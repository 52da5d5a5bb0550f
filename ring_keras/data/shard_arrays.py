"""Splits arrays among the ranks."""

from typing import Any

import numpy as np
import tensorflow as tf

__all__ = ["shard_arrays"]


def shard_arrays(
    data: Any, seed: int | None, drop_remainder: bool, rank: int, size: int
) -> Any:
    """Rank `rank`'s rows of every array in a structure; see `shard`."""
    arrays = tf.nest.map_structure(_to_array, data)
    lengths = [len(array) for array in tf.nest.flatten(arrays)]
    if len(set(lengths)) != 1:
        raise ValueError(
            "All arrays must have the same number of rows, at least one array. "
            f"Received: arrays with {lengths} rows"
        )
    count = lengths[0]
    order = np.arange(count)
    if seed is not None:
        order = np.random.default_rng(seed).permutation(count)
    if drop_remainder:
        order = order[: count - count % size]
    mine = order[rank::size]
    return tf.nest.map_structure(lambda array: array[mine], arrays)


def _to_array(leaf: Any) -> np.ndarray[Any, Any]:
    if callable(leaf) or hasattr(leaf, "__next__") or not hasattr(leaf, "__len__"):
        raise TypeError(
            "ring_keras.data.shard takes a tf.data.Dataset, or arrays in tuples, "
            f"lists and dicts. Received: {type(leaf).__name__}. Turn a generator "
            "into a dataset with tf.data.Dataset.from_generator()."
        )
    return np.asarray(leaf)
