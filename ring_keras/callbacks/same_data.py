"""Finds out whether all ranks train on the same data, which is hardly ever meant."""

import contextlib
import hashlib
import os
import platform
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from ring_keras import _native
from ring_keras import keras_internals as internals
from ring_keras.job.process_set import ProcessSet
from ring_keras.keras_internals import calls
from ring_keras.ops.data_order import order_on
from ring_keras.states.array_digest import array_digest
from ring_keras.training.parts import is_part

__all__ = [
    "cache_places",
    "compare_first_batches",
    "item_digest",
    "may_be_same",
    "source_digest",
    "warn_of_same_caches",
    "warn_of_same_data",
    "warn_of_shards",
]

_Array = np.ndarray[Any, Any]

# What shows that data are the same, and how they are divided.
_SAME = {
    "arrays": (
        "fit() got the same arrays on all %d ranks",
        "Divide them before fit(): x, y = ring_keras.data.shard((x, y)).",
    ),
    "sources": (
        "the datasets of all %d ranks read the same arrays or files",
        "Divide the dataset before batch(): dataset = ring_keras.data.shard(dataset).",
    ),
    "items": (
        "batch 0 of the PyDataset is the same on all %d ranks",
        "Divide it before fit(): data = ring_keras.data.shard(data).",
    ),
    "first batches": (
        "the first batch was the same on all %d ranks",
        "Divide the data: data = ring_keras.data.shard(data), a dataset before "
        "batch(). Make a generator a dataset first: tf.data.Dataset.from_generator().",
    ),
}

# So many files, and bytes of each, for all files.
_FILES = 8
_BYTES = 1024


def item_digest(run: calls.Run) -> str | None:
    """Of batch 0 of a `PyDataset` that nobody has divided; see `array_digest`.

    `fit` takes batches in another order on each rank, so the first ones would not tell.
    Keras, too, takes some before it trains, to see their shapes. None if `fit` takes a
    number of steps out of the data: see `source_digest`.
    """
    data = run.data
    if not isinstance(data, keras.utils.PyDataset) or is_part(data):
        return None
    if run.keeps_iterator:
        return None
    try:
        return array_digest(data[0])
    except Exception:  # What is wrong with it, Keras says.
        return None


def may_be_same(data: Any) -> bool:
    """Whether only the batches will tell: of what nobody has divided."""
    if isinstance(data, tf.data.Dataset):
        return not any(map(order_on, internals.upstream(data)))
    return callable(getattr(data, "__iter__", None)) and not array_digest(data)


def source_digest(run: calls.Run) -> str | None:
    """Of a dataset that nobody has divided: what is read, and what is done to it.

    Equal on ranks that train on the same items, though each shuffles and augments them
    in its own way. None if that cannot be told, or if `fit` takes a number of steps out
    of the data: then each rank may mean to draw its items from all.
    """
    data = run.data
    if not isinstance(data, tf.data.Dataset) or not may_be_same(data) or is_part(data):
        return None
    if run.keeps_iterator:
        return None
    recipe = internals.recipe(data)
    sources = internals.source_tensors(data)
    texts = [array for array in sources if array.dtype == object]
    # With names of files the rest are labels, which may be in another order.
    digest = _digest_of_texts(texts) if texts else array_digest(sources)
    if recipe is None or digest is None:
        return None
    return f"{int(data.cardinality())} {recipe} {digest}"


def _digest_of_texts(arrays: Iterable[_Array]) -> str | None:
    """Of file names, or of texts, in any order; None if there is only one."""
    texts = sorted(set(np.concatenate([array.ravel() for array in arrays])))
    if len(texts) < 2:
        return None
    digest = hashlib.sha256(b"\0".join(texts))
    places = np.linspace(0, len(texts) - 1, min(len(texts), _FILES))
    for path in (Path(os.fsdecode(texts[int(place)])) for place in places):
        # Another host may have other data by the same name. Not all texts are names.
        with contextlib.suppress(OSError, ValueError):
            if path.is_file():
                with path.open("rb") as file:
                    digest.update(f"{path.stat().st_size}".encode())
                    digest.update(file.read(_BYTES))
    return digest.hexdigest()


def compare_first_batches(process_set: ProcessSet) -> Callable[[], None]:
    """Has the first batch noted.

    Returns:
        To be called when that has been trained on; collective.
    """
    _native.await_first_batch()

    def compare() -> None:
        ours = np.array([_native.first_batch()], np.uint64).view(np.int64)
        everyones = _native.allgather(
            ours, "fit/first_batch", process_set.communicator_id()
        )
        if everyones[0] and (everyones == everyones[0]).all():
            warn_of_same_data("first batches", process_set)

    return compare


def warn_of_same_data(what: str, process_set: ProcessSet) -> None:
    """Says so on the first rank; `what` is one of `_SAME`."""
    came, remedy = _SAME[what]
    if process_set.rank() == 0:
        logging.warning(
            "ring_keras: [RK503] "
            "each rank should train on its own part of the data, but "
            f"{came}, so an epoch trains on every example %d times. {remedy}",
            process_set.size(),
            process_set.size(),
        )


def warn_of_shards(
    everyones: Iterable[list[tuple[int, int, list[tuple[int, int]]]]],
    process_set: ProcessSet,
) -> bool:
    """Says so on the first rank if ranks divide what each has shuffled by itself.

    Args:
        everyones: What `shards_behind_shuffles` finds in each rank's data.
        process_set: The ranks that train together.

    Returns:
        Whether they do.
    """
    for of_ranks in zip(*everyones, strict=False):
        counts, indices, seeds = zip(*of_ranks, strict=True)
        if set(counts) == {1} or len(set(counts)) > 1 or len(set(indices)) == 1:
            continue  # No rank's own part, such as one fold on all of them.
        is_by_chance = any((0, 0) in pairs for pairs in seeds)
        if is_by_chance or any(pairs != seeds[0] for pairs in seeds):
            if process_set.rank() == 0:
                logging.warning(
                    "ring_keras: [RK513] "
                    "dataset.shard() divides the data after a shuffle with another "
                    "order on each rank: some examples are on several ranks, and "
                    "others on none. Leave both to "
                    "ring_keras.data.shard(dataset, seed=1), or give "
                    "shuffle(), or list_files(), a seed, the same on every rank."
                )
            return True
    return False


def cache_places(data: Any) -> list[tuple[str, str]]:
    """The host and path of each file in which this rank's data are cached."""
    return [(platform.node(), file) for file in internals.cache_files(data)]


def warn_of_same_caches(
    everyones: Sequence[list[tuple[str, str]]], process_set: ProcessSet
) -> bool:
    """Says so on the first rank if ranks cache their data in one file.

    Args:
        everyones: The `cache_places` of each rank's data.
        process_set: The ranks that train together.

    Returns:
        Whether they do.
    """
    users: dict[tuple[str, str], list[int]] = {}
    for rank, places in zip(process_set.ranks, everyones, strict=True):
        for place in set(places):
            users.setdefault(place, []).append(rank)
    shared = {place: ranks for place, ranks in users.items() if len(ranks) > 1}
    for (host, file), ranks in shared.items():
        if process_set.rank() == 0:
            logging.warning(
                "ring_keras: [RK653] "
                "each rank should cache its data in a file of its own, but ranks %s "
                "of host %s share '%s': while one writes it the others fail, and then "
                "they read that one's data. Name the ranks in it: "
                "dataset.cache(f'cache-{ring_keras.rank()}-of-{ring_keras.size()}').",
                ranks,
                host,
                file,
            )
    return bool(shared)
