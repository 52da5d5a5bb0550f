"""What one process does in place of what only ranks have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ring_keras.keras_internals import steps_done
from support.fits.data import BATCH, Data, generated

__all__ = [
    "LayerOfEachRank",
    "Ramp",
    "Rates",
    "local_initializer",
    "mixed",
    "with_loss",
]


class _Rule(keras.callbacks.Callback):
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs["learning_rate"] = float(self.model.optimizer.learning_rate)


class Ramp(_Rule):
    """A rate that grows by the same amount in each update, `size` times in all."""

    def __init__(self, rate: float, steps: int, size: int) -> None:
        super().__init__()
        self._rate, self._steps, self._size = rate, steps, size

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        optimizer = self.model.optimizer
        inner = getattr(optimizer, "inner_optimizer", optimizer)
        updates = steps_done(optimizer) // (inner.gradient_accumulation_steps or 1)
        if updates <= self._steps:
            part = updates / self._steps
            optimizer.learning_rate = self._rate * (1 + part * (self._size - 1))


class Rates(_Rule):
    """A rate times a function of how many epochs the optimizer has been through."""

    def __init__(self, rate: float, multiplier: Callable[[float], float]) -> None:
        super().__init__()
        self._rate, self._multiplier = rate, multiplier

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        epoch = steps_done(self.model.optimizer) // self.params["steps"]
        self.model.optimizer.learning_rate = self._rate * self._multiplier(epoch)


def local_initializer(rank: int) -> keras.initializers.Initializer:
    """Other numbers for each rank."""
    return keras.initializers.RandomNormal(stddev=0.5, seed=10 + rank)


class LayerOfEachRank(keras.layers.Layer):
    """A dense layer for each rank, which sees that rank's rows of a batch."""

    def __init__(self, units: int, size: int) -> None:
        super().__init__()
        self._units, self._size = units, size

    def build(self, shape: Any) -> None:
        def initialize(_: Any, dtype: Any = None) -> Any:
            ranks = [local_initializer(rank) for rank in range(self._size)]
            values = [one((shape[-1], self._units), dtype) for one in ranks]
            return keras.ops.stack(values)

        size, units = self._size, self._units
        self.kernel = self.add_weight(
            shape=(size, shape[-1], units), initializer=initialize
        )
        self.bias = self.add_weight(shape=(size, units), initializer="zeros")

    def call(self, inputs: Any) -> Any:
        # Items are dealt out one by one.
        rank = tf.range(tf.shape(inputs)[0]) % self._size
        mine = tf.one_hot(rank, self._size, dtype=inputs.dtype)
        kernel = tf.convert_to_tensor(self.kernel)
        every = tf.einsum("bi,rio->bro", inputs, kernel) + self.bias
        return tf.einsum("bro,br->bo", every, mine)

    def compute_output_shape(self, shape: Any) -> Any:
        return (*shape[:-1], self._units)


def mixed(parts: Any) -> Any:
    """The examples of a batch in another order."""
    count = len(tf.nest.flatten(parts)[0])
    order = np.random.default_rng(0).permutation(count)
    return tf.nest.map_structure(lambda array: array[order], parts)


def with_loss(
    data: Data, size: int, lost: tuple[int, int], epoch: int, *, is_mixed: bool
) -> tf.data.Dataset:
    """The global batches of ranks of which one was lost.

    Args:
        data: All of it.
        size: How many ranks there were.
        lost: In which epoch, and how many steps it had by then.
        epoch: Whose batches.
        is_mixed: Whether the examples of each batch come in another order.
    """
    batches: list[Any] = []
    at = 0
    while at < data.count:
        ranks = size if (epoch, len(batches)) < lost else size - 1
        count = min(BATCH * ranks, data.count - at)
        if data.remainder == "drop":
            count -= count % ranks
        if not count:
            break
        parts = data.rows(np.arange(at, at + count)).parts()
        batches.append(mixed(parts) if is_mixed else parts)
        at += count
    dataset = generated(batches)
    return dataset.apply(tf.data.experimental.assert_cardinality(len(batches)))
