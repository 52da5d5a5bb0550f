"""Splits arrays among the ranks."""

import zlib
from typing import Any

import keras
import numpy as np

from ring_keras.values.padding import PADDING_WEIGHT

__all__ = ["as_arrays", "sample_of", "shard_arrays"]

# So many rows stand for an array, and so many numbers for a row.
_SAMPLED_ROWS = 16
_SAMPLED_NUMBERS = 16


def shard_arrays(
    data: Any, seed: int | None, remainder: str, rank: int, size: int
) -> Any:
    """Rank `rank`'s rows of every array in a structure; see `shard`."""
    arrays = as_arrays(data)
    lengths = [len(array) for array in keras.tree.flatten(arrays)]
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
    part = keras.tree.map_structure(lambda array: array[mine], arrays)
    if remainder == "pad" and len(mine) * size < count + (-count) % size:
        part = _padded(part, keras.tree.map_structure(lambda array: array[:1], arrays))
    return part


def as_arrays(data: Any) -> Any:
    """The structure, with arrays of NumPy for whatever has rows."""
    return keras.tree.map_structure(_to_array, data)


def sample_of(arrays: Any) -> list[np.ndarray[Any, Any]]:
    """Of each array a few numbers from a few of its rows, at places by its shape."""
    return list(map(_sample_of, keras.tree.flatten(arrays)))


def _sample_of(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    array = np.atleast_1d(array)
    rows: np.ndarray[Any, Any] = array[_places(len(array), _SAMPLED_ROWS)]
    if not np.issubdtype(rows.dtype, np.number):
        return np.array([_number_of(item) for item in rows.ravel().tolist()], np.int64)
    numbers = rows.reshape(len(rows), -1) if rows.size else rows.reshape(0, 0)
    return np.take(numbers, _places(numbers.shape[1], _SAMPLED_NUMBERS), axis=1)


def _number_of(item: Any) -> int:
    """Of what is no number; 0 if it may look otherwise in each process."""
    if not isinstance(item, (bool, bytes, str)):
        return 0
    # Of a file, its name: hosts may have the same files in other directories.
    return zlib.crc32(str(item).rpartition("/")[2].encode())


def _places(count: int, most: int) -> np.ndarray[Any, Any]:
    """So many of `count`, from the first to the last."""
    return np.linspace(0, max(count - 1, 0), min(count, most)).astype(int)


def _with_sample_weights(arrays: Any, count: int) -> Any:
    require_pair_or_triple(arrays)
    if len(arrays) == 2:
        return (*arrays, np.ones(count, np.float32))
    x, y, weights = arrays
    return x, y, keras.tree.map_structure(without_marks, weights)


def without_marks(weights: Any) -> np.ndarray[Any, Any]:
    """Sample weights of which no -0.0 of the user's own says that a row is padding."""
    copy = np.array(weights)
    copy[copy == 0] = 0
    return copy


def require_pair_or_triple(data: Any) -> None:
    """Raises ValueError unless sample weights have a place in a structure."""
    if not isinstance(data, (tuple, list)) or len(data) not in (2, 3):
        raise ValueError(
            "[RK510] "
            "ring_keras.data.shard(remainder='pad') marks copies by their sample "
            "weight, so it takes pairs (x, y) or triples (x, y, sample_weight). "
            f"Received: {type(data).__name__} of {len(keras.tree.flatten(data))} "
            "parts. Use remainder='drop', or 'keep' and ring_keras.data.join()."
        )


def _padded(part: Any, row: Any) -> Any:
    *examples, weights = row
    row = (*examples, keras.tree.map_structure(padding_like, weights))
    return keras.tree.map_structure(lambda *rows: np.concatenate(rows), part, row)


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
    if callable(leaf) or hasattr(leaf, "__next__"):
        advice = "Turn a generator into a dataset with tf.data.Dataset.from_generator()"
    elif type(leaf).__name__ in ("RaggedTensor", "SparseTensor"):
        advice = "Make a dataset of it with tf.data.Dataset.from_tensor_slices()"
    else:
        array = np.asarray(leaf) if hasattr(leaf, "__len__") else np.array(None)
        if array.ndim > 0:  # A string has a length.
            return array
        advice = "Make an array of a list of values with np.asarray()"
    raise TypeError(
        "[RK510] "
        "ring_keras.data.shard takes a tf.data.Dataset, a keras.utils.PyDataset, "
        "or arrays in tuples, lists and dicts. Received: "
        f"{type(leaf).__name__}. {advice}."
    )
