"""Deals out the batches of a `keras.utils.PyDataset` among the ranks."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ring_keras.data.resume import Resume
from ring_keras.data.shard_arrays import (
    as_arrays,
    padding_like,
    require_pair_or_triple,
    without_marks,
)

__all__ = ["first_targets", "shard_py_dataset"]


def shard_py_dataset(
    data: keras.utils.PyDataset,
    seed: int | None,
    remainder: str,
    rank: int,
    size: int,
    resume: Resume | None = None,
) -> keras.utils.PyDataset:
    """Rank `rank`'s batches; see `shard`."""
    if seed is not None and data.num_batches is None:
        raise ValueError(
            "[RK510] "
            "ring_keras.data.shard(seed=...) shuffles all batches, so it must know how "
            "many there are. Received: a PyDataset whose num_batches is None"
        )
    part = _Part(data, seed, remainder, rank, size)
    if resume is not None:
        part.count_epochs = part.changes_with_epochs = False
        resume.at_epoch(part.set_epoch)
    return part


def first_targets(data: keras.utils.PyDataset) -> list[Any]:
    """Arrays that ranks with the same batches have in common; none if that is not sure.

    Inputs may be augmented by chance, and so may targets that are images or mixed: only
    labels and single numbers are taken. They are looked at twice, as what differs in
    one process may differ between ranks.
    """
    try:
        batches = [data[0], data[0]]
        if not all(isinstance(batch, tuple) for batch in batches):
            return []
        looks = [tf.nest.flatten(as_arrays(targets)) for _, targets, *_ in batches]
        first, second = ([*filter(_are_labels, map(np.asarray, x))] for x in looks)
    except Exception:  # Code of the user's, which may not expect to be called yet.
        return []
    alike = map(_are_equal, first, second)
    return first if len(first) == len(second) and all(alike) else []


def _are_labels(targets: np.ndarray[Any, Any]) -> bool:
    width = targets.size // max(len(targets), 1) if targets.ndim else 1
    is_coded = not np.issubdtype(targets.dtype, np.inexact) and targets.ndim <= 2
    return width == 1 or is_coded


def _are_equal(first: np.ndarray[Any, Any], second: np.ndarray[Any, Any]) -> bool:
    return first.shape == second.shape and first.tobytes() == second.tobytes()


class _Part(keras.utils.PyDataset):
    """Every `size`-th batch, of an order that all ranks share.

    Worker processes get a copy of it each epoch, so it holds nothing that cannot
    be copied.
    """

    def __init__(
        self,
        data: keras.utils.PyDataset,
        seed: int | None,
        remainder: str,
        rank: int,
        size: int,
    ) -> None:
        super().__init__(
            workers=data.workers,
            use_multiprocessing=data.use_multiprocessing,
            max_queue_size=data.max_queue_size,
        )
        self.count_epochs = True
        self.is_given = False
        self.changes_with_epochs = seed is not None
        self._data = data
        self._seed = seed
        self._remainder = remainder
        self._rank = rank
        self._size = size
        self._epoch = 0
        self._order: tuple[int, int, np.ndarray[Any, Any]] | None = None

    @property
    def _ring_keras_data_order(self) -> "_Part":
        """As of a dataset, `fit` tells it the number of each epoch."""
        return self

    @property
    def num_batches(self) -> int | None:
        """Of this rank."""
        count: int | None = self._data.num_batches
        if count is None:
            return None
        if self._remainder == "drop":
            return count // self._size
        rank = 0 if self._remainder == "pad" else self._rank
        return (count - rank + self._size - 1) // self._size

    def __getitem__(self, index: int) -> Any:
        position = index * self._size + self._rank
        count = self._data.num_batches
        if count is None:
            return self._data[position]
        if self._remainder != "pad":
            return self._data[self._index_at(position, count)]
        # A rank that lacks a batch takes the first one again.
        is_real = position < count
        batch = self._data[self._index_at(position if is_real else 0, count)]
        return _weighted(batch, is_real)

    def on_epoch_begin(self) -> None:
        """Keras calls it; passed on."""
        self._data.on_epoch_begin()

    def on_epoch_end(self) -> None:
        """As `on_epoch_begin`. The next epoch has another order."""
        self._data.on_epoch_end()
        if self.count_epochs:
            self._epoch += 1

    def set_epoch(self, epoch: int) -> None:
        """Takes the order of that epoch."""
        self._epoch = int(epoch)

    def _index_at(self, position: int, count: int) -> int:
        if self._seed is None:
            return position
        if self._order is None or self._order[:2] != (self._epoch, count):
            generator = np.random.default_rng([self._seed, self._epoch])
            self._order = (self._epoch, count, generator.permutation(count))
        return int(self._order[2][position])


def _weighted(batch: Any, is_real: bool) -> Any:
    require_pair_or_triple(batch)
    if len(batch) == 3:
        x, y, weights = batch
    else:
        x, y = batch
        weights = np.ones(len(tf.nest.flatten(x)[0]), np.float32)
    marks = without_marks if is_real else padding_like
    return x, y, tf.nest.map_structure(marks, weights)
