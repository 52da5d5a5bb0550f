"""A `fit` with `Preemption`, and a scheduler that ends it."""

from __future__ import annotations

import os
from pathlib import Path

import keras

import ring_keras as ring
from ring_keras import keras_internals as internals
from support import training

COUNT = 62
EPOCHS = 3


class Sends(keras.callbacks.Callback):
    """A scheduler's signal to some ranks, after a step or in validation."""

    def __init__(self, number, ranks, step=None, in_validation_of=None):
        super().__init__()
        self._number = number if ring.rank() in ranks else 0
        self._step = step
        self._epoch = in_validation_of
        self._in_epoch = None
        self.validated = 0
        self.ended = 0

    def on_epoch_begin(self, epoch, logs=None):
        self._in_epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if internals.steps_done(self.model.optimizer) == self._step and self._number:
            os.kill(os.getpid(), self._number)

    def on_epoch_end(self, epoch, logs=None):
        self.ended += 1

    def on_test_batch_end(self, batch, logs=None):
        self.validated += 1
        if self._in_epoch == self._epoch and self._number:
            os.kill(os.getpid(), self._number)


def train(
    directory,
    sends=None,
    validates=False,
    averages=True,
    optimizer=None,
    shard_state=False,
    **options,
):
    """The weights after it, as bytes; None in place of what a signal has ended."""
    keras.utils.set_random_seed(100 + ring.rank())
    optimizer = optimizer or keras.optimizers.Adam(0.01)
    if shard_state:
        optimizer = ring.DistributedOptimizer(optimizer, shard_state=True)
    model = training.compile_model(training.build(3), optimizer)
    resume = ring.data.Resume()
    part = ring.data.shard(training.dataset(COUNT), seed=1, resume=resume)
    own = [ring.callbacks.Preemption(directory, **options), resume]
    own += [ring.callbacks.BroadcastGlobalVariables()]
    own += [ring.callbacks.MetricAverage()] if averages else []
    validation = training.dataset(8).batch(4) if validates else None
    history = training.fit(
        model,
        part,
        training.BATCH,
        epochs=EPOCHS,
        callbacks=[*own, *([sends] if sends else [])],
        validation_data=validation,
    )
    return training.as_bytes(model.get_weights()), history


def steps_per_epoch(size):
    return -(-(COUNT // size) // training.BATCH)


def names(directory):
    return sorted(path.name for path in Path(directory).iterdir())
