"""Data as batches that can be counted and cut, of whichever kind they are."""

import math
from typing import Any, Protocol

import keras
import tensorflow as tf

from ring_keras import keras_internals as internals
from ring_keras.data.shard_dataset import shuffle_seeds

__all__ = ["Source", "source_of"]

_KERAS_BATCH_SIZE = 32


class Source(Protocol):
    """Batches in an order of their own."""

    count: int
    """How many."""

    def first(self) -> Any:
        """The first of them."""

    def between(self, start: int, end: int) -> dict[str, Any]:
        """Some that follow each other, as arguments of Keras's methods."""


def source_of(
    name: str, x: Any, y: Any, sample_weight: Any, batch_size: int | None
) -> Source:
    """The batches of which Keras would read these data.

    Args:
        name: Of the function that was given them.
        x: See `evaluate`.
        y: See `evaluate`.
        sample_weight: See `evaluate`.
        batch_size: See `evaluate`.

    Raises:
        TypeError: If data of this kind cannot be cut.
        ValueError: If they have no end or no order, or the arguments do not fit.
    """
    if isinstance(x, (tf.data.Dataset, keras.utils.PyDataset)):
        if y is not None or sample_weight is not None or batch_size is not None:
            raise ValueError(
                f"ring_keras.{name} takes targets, weights and the size of batches "
                f"from the {type(x).__name__} that it is given. Leave out `y`, "
                "`sample_weight` and `batch_size`."
            )
        return _Dataset(name, x) if isinstance(x, tf.data.Dataset) else _Py(name, x)
    return _Arrays(name, x, y, sample_weight, batch_size)


class _Dataset:
    def __init__(self, name: str, dataset: tf.data.Dataset) -> None:
        shuffles_anew = any(map(internals.reshuffles, internals.upstream(dataset)))
        has_no_seed = (0, 0) in shuffle_seeds(dataset)
        may_vary = internals.may_reorder(dataset)
        if shuffles_anew or has_no_seed or may_vary:
            raise ValueError(
                f"ring_keras.{name} has each rank read some of the batches, so they "
                "must have one order, in every pass and on every rank. Received: a "
                "dataset that is shuffled, or has deterministic=False in options() "
                "or a transformation. Leave that out."
            )
        self._dataset = dataset
        self.count = int(dataset.cardinality())
        if self.count == tf.data.INFINITE_CARDINALITY:
            raise ValueError(
                f"ring_keras.{name} reads the data to their end. Received: an infinite "
                "dataset. Say how many batches with dataset.take(n)."
            )
        if self.count == tf.data.UNKNOWN_CARDINALITY:
            counted = dataset.reduce(tf.constant(0, tf.int64), lambda sum, *_: sum + 1)
            self.count = int(counted)

    def first(self) -> Any:
        return next(iter(self._dataset))

    def between(self, start: int, end: int) -> dict[str, Any]:
        part = self._dataset.skip(start).take(end - start)
        counted = tf.data.experimental.assert_cardinality(end - start)
        return {"x": part.apply(counted)}


class _Py:
    def __init__(self, name: str, data: keras.utils.PyDataset) -> None:
        if data.num_batches is None:
            raise ValueError(
                f"ring_keras.{name} must know how many batches there are. Received: a "
                "PyDataset whose num_batches is None"
            )
        self._data = data
        self.count = int(data.num_batches)

    def first(self) -> Any:
        # As Keras does before it reads; ranks compare what follows from it.
        self._data.on_epoch_begin()
        return self._data[0]

    def between(self, start: int, end: int) -> dict[str, Any]:
        return {"x": _Between(self._data, start, end)}


class _Between(keras.utils.PyDataset):
    """Some batches of another."""

    def __init__(self, data: keras.utils.PyDataset, start: int, end: int) -> None:
        super().__init__(
            workers=data.workers,
            use_multiprocessing=data.use_multiprocessing,
            max_queue_size=data.max_queue_size,
        )
        self._data = data
        self._start = start
        self._count = end - start
        self._has_begun = False

    @property
    def num_batches(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        return self._data[self._start + index]

    def on_epoch_begin(self) -> None:
        """The data were told before the ranks compared their order."""
        self._has_begun = True

    def on_epoch_end(self) -> None:
        """Passed on, but not where Keras says so before it begins: data may shuffle."""
        if self._has_begun:
            self._has_begun = False
            self._data.on_epoch_end()


class _Arrays:
    def __init__(
        self, name: str, x: Any, y: Any, sample_weight: Any, batch_size: int | None
    ) -> None:
        given = {"x": x, "y": y, "sample_weight": sample_weight}
        self._data = {key: one for key, one in given.items() if one is not None}
        self._size = _KERAS_BATCH_SIZE if batch_size is None else batch_size
        if self._size < 1:
            raise ValueError(
                f"ring_keras.{name} takes a batch_size of at least 1. Received: "
                f"batch_size={batch_size}"
            )
        arrays = tf.nest.flatten(self._data)
        for array in arrays:
            if not getattr(array, "shape", None):
                raise TypeError(
                    f"ring_keras.{name} takes a tf.data.Dataset, a "
                    "keras.utils.PyDataset, or arrays in tuples, lists and dicts. "
                    f"Received: {type(array).__name__}. Turn a generator into a "
                    "dataset with tf.data.Dataset.from_generator(), and lists of "
                    "numbers into arrays."
                )
        rows = [int(array.shape[0]) for array in arrays]
        if len(set(rows)) != 1:
            raise ValueError(
                f"ring_keras.{name} takes arrays with the same number of rows. "
                f"Received: arrays with {rows} rows"
            )
        self._rows = rows[0]
        self.count = math.ceil(self._rows / self._size)

    def first(self) -> Any:
        return self._between(0, 1)

    def between(self, start: int, end: int) -> dict[str, Any]:
        return {**self._between(start, end), "batch_size": self._size}

    def _between(self, start: int, end: int) -> dict[str, Any]:
        rows = slice(start * self._size, min(end * self._size, self._rows))
        part: dict[str, Any] = tf.nest.map_structure(
            # Data frames of pandas count columns otherwise.
            lambda array: (array.iloc if hasattr(array, "iloc") else array)[rows],
            self._data,
        )
        return part
