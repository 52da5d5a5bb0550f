"""What a pipeline of tf.data is made of, in a form that ranks can compare."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from ring_keras.keras_internals.datasets import shuffle_seeds, upstream
from ring_keras.keras_internals.names import (
    CACHE_DATASET,
    CACHE_FILE,
    DRAWING_DATASETS,
    PYTHON_OPS,
    SHARD_DATASET,
    SHARD_PLACE,
    SHUFFLE_SEEDS,
    SOURCE_TENSORS,
)

__all__ = ["cache_files", "recipe", "shards_behind_shuffles", "source_tensors"]

Array = np.ndarray[Any, Any]


def source_tensors(dataset: tf.data.Dataset) -> list[Array]:
    """What the program has given the dataset to read: items, or names of files."""
    found = []
    for one in upstream(dataset):
        for value in tf.nest.flatten([vars(one).get(name) for name in SOURCE_TENSORS]):
            if isinstance(value, tf.data.Dataset):
                found += source_tensors(value)
            elif _has_value(value):
                found.append(np.asarray(value))
    return found


def cache_files(dataset: Any) -> list[str]:
    """The files of each `dataset.cache(filename)`."""
    found = []
    for one in upstream(dataset):
        if type(one).__name__ == CACHE_DATASET:
            file = vars(one).get(CACHE_FILE)
            name = os.fsdecode(file.numpy()) if _has_value(file) else ""
            if name:  # Else it is in memory.
                found.append(str(Path(name).resolve()))
    return found


def shards_behind_shuffles(
    dataset: tf.data.Dataset,
) -> list[tuple[int, int, list[tuple[int, int]]]]:
    """Of each `dataset.shard` after a shuffle: its arguments, the shuffles' seeds."""
    found = []
    for one in upstream(dataset):
        if type(one).__name__ == SHARD_DATASET:
            shards, index = (int(getattr(one, name)) for name in SHARD_PLACE)
            seeds = [pair for pair in map(shuffle_seeds, upstream(one)) if pair]
            if seeds:
                found.append((shards, index, seeds))
    return found


def recipe(dataset: tf.data.Dataset) -> str | None:
    """A digest of all that is done to the source's tensors, but for seeds.

    None where a function calls Python or reads a variable or a table, of which nothing
    can be told, and where each rank may draw items of its own from all, shuffled.
    """
    digest = hashlib.sha256()
    for one in upstream(dataset):
        draws = type(one).__name__ in DRAWING_DATASETS
        if draws and any(map(shuffle_seeds, upstream(one))):
            return None
        digest.update(type(one).__name__.encode())
        for name, value in sorted(vars(one).items()):
            if name in (*SOURCE_TENSORS, *SHUFFLE_SEEDS):
                continue
            if _has_value(value) and value.dtype.is_numeric:
                digest.update(np.asarray(value).tobytes())
            function = getattr(value, "function", None)
            if hasattr(function, "captured_inputs"):
                for part in _parts_of(function):
                    if part is None:
                        return None
                    digest.update(part)
    return digest.hexdigest()


def _parts_of(function: Any) -> Iterator[bytes | None]:
    """Its operations and constants, without names; None for what cannot be told."""
    for captured in function.captured_inputs:
        yield np.asarray(captured).tobytes() if _has_value(captured) else None
    graph = function.graph.as_graph_def()
    inner = (called.node_def for called in graph.library.function)
    digests = []
    for nodes in (graph.node, *inner):
        digest = hashlib.sha256()
        for node in nodes:
            if node.op in PYTHON_OPS:
                yield None
            digest.update(node.op.encode())
            if node.op == "Const":
                digest.update(node.attr["value"].tensor.SerializeToString())
        digests.append(digest.digest())
    # The inner functions' order is that of their names, in which numbers count up.
    yield from sorted(digests)


def _has_value(value: Any) -> bool:
    """Whether it is a tensor with numbers or strings, of this process."""
    return (
        tf.is_tensor(value)
        and hasattr(value, "numpy")
        and value.dtype not in (tf.variant, tf.resource)
    )
