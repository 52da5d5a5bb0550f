"""What `slurm_hour.py` runs as each rank: `examples/elastic_digits.py`, which counts.

Its arguments are a directory, the number of epochs, seconds between steps, the seed of
the first weights, and where checkpoints are ("-": nowhere). Row i of one variable is
how often example i was trained on, in the weights that there are in the end: it is
saved, restored, and taken from others as any other weight is.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from soak.killed_training import Says, digest_of

import ring_keras as ring

COUNT = 1440
BATCH = 16
EVERY = 20


class Counts(keras.layers.Layer):
    """Passes on its first input; the loss has each example's row of the second."""

    def build(self, shape: Any) -> None:
        """Makes the variable."""
        self.counts = self.add_weight(
            shape=(COUNT,), initializer="zeros", name="counts"
        )

    def call(self, inputs: Any) -> Any:
        """An example without a number has no row."""
        outputs, numbers = inputs
        rows = keras.ops.one_hot(numbers, COUNT)
        self.add_loss(-keras.ops.mean(keras.ops.matmul(rows, self.counts)))
        return outputs


class CountingSGD(keras.optimizers.SGD):
    """Adds 1 to the row of each example of a step, however many that has."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """That of one variable."""
        if tuple(variable.shape) != (COUNT,):
            super().update_step(gradient, variable, learning_rate)
            return
        share = -gradient  # Of the step's examples, each has the same.
        least = keras.ops.min(keras.ops.where(share > 0, share, np.inf))
        variable.assign_add(keras.ops.round(share / least))


class Curve(keras.callbacks.Callback):
    """Writes down what `fit` says of each epoch."""

    def __init__(self, directory: Path, pause: float) -> None:
        super().__init__()
        self._path = directory / f"curve.{os.environ['RING_KERAS_RANK']}"
        self._pause = pause

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Leaves the processors to others."""
        time.sleep(self._pause)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """One line for each."""
        said = {name: float(value) for name, value in (logs or {}).items()}
        with self._path.open("a") as file:
            file.write(json.dumps({"epoch": epoch, "size": ring.size(), **said}) + "\n")


def data_for(seed: int) -> tuple[tf.data.Dataset, tf.data.Dataset]:
    """The digits to train on, with their numbers, and those to test with."""
    images, labels = load_digits(return_X_y=True)
    x, x_test, y, y_test = train_test_split(
        (images / 16.0).astype(np.float32), labels, test_size=357, random_state=0
    )
    numbers = np.arange(COUNT)
    train = tf.data.Dataset.from_tensor_slices(((x, numbers), y))
    none = np.full(len(x_test), -1)
    test = tf.data.Dataset.from_tensor_slices(((x_test, none), y_test))
    return (
        ring.data.shard(train, seed=seed).batch(BATCH).prefetch(2),
        ring.data.shard(test, remainder="keep").batch(len(x_test)),
    )


def model_of(seed: int) -> keras.Model:
    """A small one that learns slowly, so that an hour of it is a curve."""
    keras.utils.set_random_seed(seed)
    images, numbers = keras.Input((64,)), keras.Input((), dtype="int64")
    x = keras.layers.Dense(64, activation="relu")(images)
    x = keras.layers.Dense(10, activation="softmax")(x)
    model = keras.Model([images, numbers], Counts()([x, numbers]))
    optimizer = ring.DistributedOptimizer(CountingSGD(0.002, momentum=0.9))
    measured = ["sparse_categorical_crossentropy", "accuracy"]
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=measured)
    return model


def main() -> None:
    """Trains until told to stop, or for so many epochs."""
    directory, epochs, pause = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    seed, checkpoints = int(sys.argv[4]), sys.argv[5]
    number = os.environ["RING_KERAS_RANK"]
    directory.mkdir(exist_ok=True)
    (directory / f"pid.{number}").write_text(str(os.getpid()))
    ring.init()
    train, test = data_for(seed)
    model = model_of(seed)
    saves = [ring.callbacks.Checkpoint(checkpoints, every=EVERY)]
    history = model.fit(
        train,
        validation_data=test,
        epochs=epochs,
        shuffle=False,
        verbose=0,
        callbacks=[
            ring.callbacks.Elastic(),
            *(saves if checkpoints != "-" else []),
            ring.callbacks.MetricAverage(),
            Curve(directory, pause),
            Says(directory),
        ],
    )
    counts = model.layers[-1].counts.numpy().round().astype(int)
    done = history.epoch[-1] + 1
    end = directory / f"end.{number}.unfinished"
    end.write_text(
        f"{done} {counts.max()} {done * COUNT - counts.sum()} {digest_of(model)}"
    )
    end.rename(directory / f"end.{number}")


if __name__ == "__main__":
    main()
