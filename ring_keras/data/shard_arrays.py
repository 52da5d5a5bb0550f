"""Splits arrays among the ranks."""

from typing import Any

import numpy as np
import tensorflow as tf

from ring_keras.training.uneven_batches import PADDING_WEIGHT

__all__ = ["shard_arrays"]


def shard_arrays(
    data: Any, seed: int | None, remainder: str, rank: int, size: int
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
    if remainder == "pad":
        arrays = _with_sample_weights(arrays, count)
    order = np.arange(count)
    if seed is not None:
        order = np.random.default_rng(seed).permutation(count)
    if remainder == "drop":
        order = order[: count - count % size]
    mine = order[rank::size]
    part = tf.nest.map_structure(lambda array: array[mine], arrays)
    if remainder == "pad" and len(mine) * size < count + (-count) % size:
        part = _padded(part, tf.nest.map_structure(lambda array: array[:1], arrays))
    return part


def _with_sample_weights(arrays: Any, count: int) -> Any:
    require_pair_or_triple(arrays)
    if len(arrays) == 3:
        return tuple(arrays)
    return (*arrays, np.ones(count, np.float32))


def require_pair_or_triple(data: Any) -> None:
    """Raises ValueError unless sample weights have a place in a structure."""
    if not isinstance(data, (tuple, list)) or len(data) not in (2, 3):
        raise ValueError(
            "[RK510] "
            "ring_keras.data.shard(remainder='pad') marks copies by their sample "
            "weight, so it takes pairs (x, y) or triples (x, y, sample_weight). "
            f"Received: {type(data).__name__} of {len(tf.nest.flatten(data))} parts. "
            "Use remainder='drop', or 'keep' and ring_keras.data.join()."
        )


def _padded(part: Any, row: Any) -> Any:
    *examples, weights = row
    row = (*examples, tf.nest.map_structure(padding_like, weights))
    return tf.nest.map_structure(lambda *rows: np.concatenate(rows), part, row)


def padding_like(weights: Any) -> np.ndarray[Any, Any]:
    """Sample weights of the same shape that mark padding."""
    weights = np.asarray(weights)
    if not np.issubdtype(weights.dtype, np.floating):
        raise ValueError(
            "Sample weights must be floating-point numbers for remainder='pad'. "
            f"Received: {weights.dtype}"
        )
    return np.full_like(weights, PADDING_WEIGHT)


def _to_array(leaf: Any) -> np.ndarray[Any, Any]:
    if callable(leaf) or hasattr(leaf, "__next__") or not hasattr(leaf, "__len__"):
        raise TypeError(
            "[RK510] "
            "ring_keras.data.shard takes a tf.data.Dataset, a keras.utils.PyDataset, "
            "or arrays in tuples, lists and dicts. Received: "
            f"{type(leaf).__name__}. Turn a generator into a dataset with "
            "tf.data.Dataset.from_generator()."
        )
    array = np.asarray(leaf)
    if array.ndim == 0:  # A string, for one, of which there is a list.
        raise TypeError(
            "ring_keras.data.shard divides the rows of arrays. Received: "
            f"{type(leaf).__name__}, which has none. Make an array of a list of "
            "values with np.array()."
        )
    return array
