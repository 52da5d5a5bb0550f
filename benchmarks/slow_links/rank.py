"""One rank of a job that trains on digits, in one of the ways that are compared.

`rank.py TASK FILE`: a JSON object; rank 0 writes another one into the file.
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
from sklearn.datasets import load_digits  # type: ignore[import-untyped]

import ring_keras as ring

BATCH = 8
TEST_COUNT = 360


def build_model(name: str) -> keras.Model:
    """`mlp`: 2.2 million weights; `cnn`: 43 thousand."""
    layers = keras.layers
    if name == "mlp":
        body = [
            layers.Flatten(),
            layers.Dense(2048, "silu"),
            layers.Dense(1024, "silu"),
        ]
    else:
        body = [
            layers.Conv2D(32, 3, padding="same", activation="silu"),
            layers.Conv2D(32, 3, strides=2, padding="same", activation="silu"),
            layers.Flatten(),
            layers.Dense(64, "silu"),
        ]
    outputs = layers.Dense(10, "softmax")
    return keras.Sequential([keras.Input((8, 8, 1)), *body, outputs])


def make_optimizer(options: dict[str, Any]) -> keras.optimizers.Optimizer:
    """What the way is: by `kind`, and the arguments of that."""
    options = dict(options)
    inner = keras.optimizers.Adam(1e-3)
    kind = options.pop("kind")
    if kind == "alone":
        return inner
    if kind == "diloco":
        outer = keras.optimizers.SGD(
            0.7, momentum=options.pop("momentum"), nesterov=True
        )
        return ring.DiLoCo(inner, outer, **options)
    return ring.DistributedOptimizer(inner, **options)


class Epochs(keras.callbacks.Callback):  # type: ignore[misc]  # Untyped.
    """When each epoch was over, and what this rank had sent by then."""

    def __init__(self, counts: bool) -> None:
        super().__init__()
        self.ends: list[tuple[float, int]] = []
        self._counts = counts

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """The ranks have met."""
        links = ring.stats(most_steps=1).links if self._counts else ()
        self.ends.append((time.perf_counter(), sum(link.bytes for link in links)))


def main() -> None:
    """Trains; the first epoch, which is traced and compiled in, is not counted."""
    task = json.loads(sys.argv[1])
    is_alone = task["way"]["kind"] == "alone"
    rank, size = int(os.environ["RING_KERAS_RANK"]), task["size"]
    if not is_alone:
        ring.init()
        assert (ring.rank(), ring.size()) == (rank, size)
    keras.utils.set_random_seed(1)
    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype(np.float32).reshape(-1, 8, 8, 1)
    order = np.random.default_rng(1).permutation(len(images))
    test, train = order[:TEST_COUNT], order[TEST_COUNT:]
    mine = train[rank : len(train) - len(train) % size : size]
    data = tf.data.Dataset.from_tensor_slices((images[mine], labels[mine]))
    data = data.shuffle(len(mine), seed=rank).repeat().batch(BATCH)
    model = build_model(task["model"])
    model.compile(
        make_optimizer(task["way"]),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
        steps_per_execution=task["steps_per_execution"],
    )
    epochs = Epochs(counts=not is_alone)
    steps = task["steps"]
    model.fit(
        data,
        steps_per_epoch=steps,
        epochs=task["epochs"],
        verbose=0,
        callbacks=[epochs],
    )
    loss, accuracy = model.evaluate(images[test], labels[test], verbose=0)
    if rank == 0:
        pairs = list(zip(epochs.ends, epochs.ends[1:], strict=False))
        result = {
            "step_s": [(end[0] - begin[0]) / steps for begin, end in pairs],
            "step_bytes": [(end[1] - begin[1]) / steps for begin, end in pairs],
            "loss": loss,
            "accuracy": accuracy,
        }
        Path(sys.argv[2]).write_text(json.dumps(result))
    if not is_alone:
        ring.barrier()


if __name__ == "__main__":
    main()
