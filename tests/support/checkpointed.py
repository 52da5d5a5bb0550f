"""A `fit` with `ring.callbacks.Checkpoint`, and whole files of the same steps."""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np

import ring_keras as ring
from ring_keras import keras_internals as internals
from support import training

COUNT = 64
BATCH = 4
EPOCHS = 2


class SavesWhole(keras.callbacks.Callback):
    """By `model.save`, on each rank, as often as the checkpoints."""

    def __init__(self, directory: str, every: int) -> None:
        super().__init__()
        self._directory = Path(directory)
        self._every = every

    def _save(self) -> None:
        steps = internals.steps_done_of(self.model)
        path = self._directory / f"whole-{steps}-{ring.rank()}.keras"
        if steps and steps % self._every == 0 and not path.exists():
            self.model.save(path)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._save()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._save()


class StopsAfter(keras.callbacks.Callback):
    """As if the job had been killed after a step, but for the processes."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self._steps = steps

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if internals.steps_done_of(self.model) == self._steps:
            raise StoppedError


class StoppedError(Exception):
    """Leaves `fit`."""


class StepsOfEpochs(keras.callbacks.Callback):
    """How many batches callbacks have heard of in each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: dict[int, int] = {}
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.steps[self._epoch] = self.steps.get(self._epoch, 0) + 1


def steps_per_epoch(size: int) -> int:
    return math.ceil(math.ceil(COUNT / size) / BATCH)


def build(
    optimizer: keras.optimizers.Optimizer | None = None, seed: int = 1, **options: Any
) -> keras.Model:
    """One with statistics that move, and numbers drawn at random.

    With shard_state=True 2 ranks have pieces of its first kernel.
    """
    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(40, activation="tanh"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(1),
        ]
    )
    optimizer = optimizer or keras.optimizers.Adam(0.01)
    model.compile(ring.DistributedOptimizer(optimizer, **options), loss="mse")
    return model


def train(
    directory: str | Path,
    *others: keras.callbacks.Callback,
    model: keras.Model | None = None,
    before: Sequence[keras.callbacks.Callback] = (),
    **arguments: Any,
) -> bytes:
    """All that a step could depend on afterwards, on this rank.

    Args:
        directory: Of the checkpoints.
        others: Callbacks behind that.
        model: In place of `build()`.
        before: Callbacks before it.
        arguments: Of the callback.
    """
    model = build() if model is None else model
    resume = ring.data.Resume()
    data = ring.data.shard(training.dataset(COUNT), seed=1, resume=resume)
    checkpoint = ring.callbacks.Checkpoint(directory, **arguments)
    callbacks = [*before, checkpoint, resume, *others]
    model.fit(data.batch(BATCH), epochs=EPOCHS, verbose=0, callbacks=callbacks)
    return everything(model)


def everything(model: keras.Model) -> bytes:
    """What its file has, and its random generators."""
    return in_file(model) + _as_bytes(internals.seed_states(model))


def in_file(model: keras.Model) -> bytes:
    """Weights, and what this rank has of the optimizer's state."""
    return _as_bytes([*model.weights, *model.optimizer.variables])


def everything_common(model: keras.Model) -> bytes:
    """What the file has, but for what an optimizer's ranks have divided."""
    optimizer = model.optimizer
    return _as_bytes([*model.weights, optimizer.iterations, optimizer.learning_rate])


def _as_bytes(variables: Sequence[Any]) -> bytes:
    return b"".join(np.asarray(variable.numpy()).tobytes() for variable in variables)


def contents(path: str | Path) -> dict[str, Any]:
    """All of a ".keras" that two saves of one model have in common."""
    with zipfile.ZipFile(path) as archive:
        found: dict[str, Any] = {
            name: archive.read(name)
            for name in archive.namelist()
            if name not in ("metadata.json", "model.weights.h5")
        }
        weights = archive.read("model.weights.h5")

    def add(name: str, item: Any) -> None:
        found[f"{name}@"] = {key: str(value) for key, value in item.attrs.items()}
        if isinstance(item, h5py.Dataset):
            found[name] = (str(item.dtype), item.shape, np.array(item).tobytes())

    with h5py.File(io.BytesIO(weights)) as file:
        file.visititems(add)
    return found
