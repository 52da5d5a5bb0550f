"""Data and models for callbacks that decide."""

from __future__ import annotations

from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

import ring_keras as ring
from support import training

Callback = keras.callbacks.Callback
EPOCHS = 4
STEPS = 5


class NoisyLabels:
    """Training and validation data on which the validation loss soon grows."""

    def __init__(self) -> None:
        size = ring.size()
        x, y = training.arrays()
        count = training.steps_of(STEPS, size)
        self.data = tf.data.Dataset.from_tensor_slices((x[:count], y[:count]))
        # Uneven, and each rank's own part says something else.
        count = 10 * size + 1
        y = np.where(np.arange(len(y))[:, None] % 3 == 0, 1 - y, y)
        self.validation = tf.data.Dataset.from_tensor_slices((x[-count:], y[-count:]))

    def fit(
        self, model: keras.Model, callbacks: list[Callback], **kwargs: object
    ) -> dict[str, list[float]]:
        """On all ranks."""
        return training.fit(
            model,
            ring.data.shard(self.data, remainder="keep"),
            training.BATCH,
            validation_data=ring.data.shard(self.validation, remainder="keep").batch(3),
            callbacks=callbacks,
            **{"epochs": EPOCHS, **kwargs},
        )

    def fit_alone(
        self, model: keras.Model, callbacks: list[Callback], **kwargs: object
    ) -> dict[str, list[float]]:
        """On the global batch."""
        size = ring.size()
        return training.fit(
            model,
            self.data,
            training.BATCH * size,
            validation_data=self.validation.batch(3 * size),
            callbacks=callbacks,
            **{"epochs": EPOCHS, **kwargs},
        )


def distributed_model(make_optimizer: Callable[[], object]) -> keras.Model:
    """Each rank's begins with other weights."""
    model = training.build(1 + ring.rank())
    model.build((None, 6))  # BackupAndRestore wants that.
    optimizer = ring.DistributedOptimizer(make_optimizer())
    return training.compile_model(model, optimizer)


def model_alone(make_optimizer: Callable[[], object]) -> keras.Model:
    """The one that one process trains."""
    model = training.build(1)
    model.build((None, 6))
    return training.compile_model(model, make_optimizer())
