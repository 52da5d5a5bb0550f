"""What `kills.py` runs as each rank: a `fit` that says what it does, step by step.

Its arguments are a directory and the number of epochs. On all ranks row i of the first
variable is how often example i was trained on: gradients are summed, and all numbers
are small integers. The second one gets noise, so that it shows where ranks differ.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import ring_keras as ring
from ring_keras.job.job import current_job
from ring_keras.keras_internals import steps_done

COUNT = 240
NOISE = 1000


class CountsAndNoise(keras.layers.Layer):
    """Its gradient is each example's row, and noise."""

    def build(self, shape: Any) -> None:
        """Makes the two variables."""
        self.counts = self.add_weight(shape=(COUNT, 1), initializer="zeros")
        self.noise = self.add_weight(shape=(NOISE,), initializer="zeros")

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """A sum of both."""
        noise = tf.random.normal([tf.shape(x)[0], NOISE])
        return x @ self.counts + tf.linalg.matvec(noise, self.noise)[:, None]


class Negative(keras.losses.Loss):
    """Whose gradient adds."""

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        """The less the more."""
        return -y_pred


class Says(keras.callbacks.Callback):
    """Writes a line for each step, as `history.py` has it."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        number = os.environ["RING_KERAS_RANK"]
        self._stop = directory / "stop"
        self._file = (directory / f"steps.{number}").open("w", buffering=1)
        self._generation = -1

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """A step is done."""
        now = time.monotonic()
        generation = current_job().generation
        digest = "-"
        if generation != self._generation:
            self._generation = generation
            digest = digest_of(self.model)
        step = steps_done(self.model.optimizer)
        self._file.write(
            f"{now} {generation} {ring.rank()} {ring.size()} {step} {digest}\n"
        )
        time.sleep(0.02)  # Leaves a replacement some of the machine.

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """All stop if one does."""
        if self._stop.exists():
            self.model.stop_training = True


def digest_of(model: keras.Model) -> str:
    """Of all that the ranks have in common."""
    variables = [*model.weights, *model.optimizer.variables]
    content = b"".join(np.array(variable).tobytes() for variable in variables)
    return hashlib.sha256(content).hexdigest()[:16]


def main() -> None:
    """Trains until told to stop."""
    directory, epochs = Path(sys.argv[1]), int(sys.argv[2])
    number = os.environ["RING_KERAS_RANK"]
    (directory / f"pid.{number}").write_text(str(os.getpid()))
    (directory / f"imported.{number}").write_text(str(time.monotonic()))
    ring.init()
    x = np.eye(COUNT, dtype=np.float32)
    data = tf.data.Dataset.from_tensor_slices((x, np.zeros((COUNT, 1), np.float32)))
    train = ring.data.shard(data, seed=1).batch(2).prefetch(2)
    model = keras.Sequential([keras.Input((COUNT,)), CountsAndNoise()])
    optimizer = ring.DistributedOptimizer(keras.optimizers.SGD(1.0), op=ring.Sum)
    model.compile(optimizer, Negative(reduction="sum"))
    says = Says(directory)
    history = model.fit(
        train,
        epochs=epochs,
        shuffle=False,
        verbose=0,
        callbacks=[ring.callbacks.Elastic(), says],
    )
    counts = model.layers[-1].counts.numpy().ravel().astype(int)
    done = len(history.epoch)
    (directory / f"end.{number}.unfinished").write_text(
        f"{done} {counts.max()} {done * COUNT - counts.sum()} {digest_of(model)}"
    )
    (directory / f"end.{number}.unfinished").rename(directory / f"end.{number}")


if __name__ == "__main__":
    main()
