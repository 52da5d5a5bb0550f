"""One rank of a job that trains on digits, in one of the ways that are compared.

`rank.py TASK FILE`: a JSON object; rank 0 writes another one into the file.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any, TypeAlias

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits  # type: ignore[import-untyped]

import ring_keras as ring

BATCH = 8
TEST_COUNT = 360
# Of the transformer: characters of a row, numbers of each, different characters.
LENGTH, WIDTH, CHARACTERS = 32, 64, 95
MANUAL = Path(__file__).resolve().parents[2] / "docs"

Arrays: TypeAlias = tuple[Any, Any]


def build_model(name: str) -> keras.Model:
    """`mlp`: 2.2 million weights; `transformer`: 113 thousand; `cnn`: 43 thousand."""
    layers = keras.layers
    if name == "transformer":
        return _build_transformer()
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


def _build_transformer() -> keras.Model:
    """The next character, of each of a text."""
    layers = keras.layers
    inputs = keras.Input((LENGTH,), dtype="int32")
    places = layers.Embedding(LENGTH, WIDTH)(keras.ops.arange(LENGTH))
    x = layers.Embedding(CHARACTERS, WIDTH)(inputs) + places
    for _ in range(2):
        normal = layers.LayerNormalization()(x)
        attention = layers.MultiHeadAttention(4, WIDTH // 4)
        x = x + attention(normal, normal, use_causal_mask=True)
        wide = layers.Dense(4 * WIDTH, "gelu")(layers.LayerNormalization()(x))
        x = x + layers.Dense(WIDTH)(wide)
    outputs = layers.Dense(CHARACTERS, "softmax")(layers.LayerNormalization()(x))
    return keras.Model(inputs, outputs)


def load_data(name: str) -> tuple[Arrays, Arrays]:
    """What the model trains on, and is tested on."""
    if name == "transformer":
        text = "".join(p.read_text() for p in sorted(MANUAL.glob("*.md")))
        codes = np.array([ord(c) for c in text if " " <= c <= "~"], np.int32) - ord(" ")
        begins = np.arange(0, len(codes) - LENGTH - 1, LENGTH)
        rows = codes[begins[:, np.newaxis] + np.arange(LENGTH + 1)]
        x, y = rows[:, :-1], rows[:, 1:]
    else:
        x, y = load_digits(return_X_y=True)
        x = (x / 16.0).astype(np.float32).reshape(-1, 8, 8, 1)
    order = np.random.default_rng(1).permutation(len(x))
    test, train = order[:TEST_COUNT], order[TEST_COUNT:]
    return (x[train], y[train]), (x[test], y[test])


def make_optimizer(options: dict[str, Any]) -> keras.optimizers.Optimizer:
    """What the way is: by `kind`, and the arguments of that.

    Of the `alone` each rank is a job of its own, whose step differs from the others'
    in nothing but what they communicate.
    """
    options = dict(options)
    inner = keras.optimizers.Adam(1e-3)
    kind = options.pop("kind")
    if kind == "keras":
        return inner
    if kind == "alone":
        return ring.DistributedOptimizer(inner)
    if kind == "diloco":
        outer = keras.optimizers.SGD(
            0.7, momentum=options.pop("momentum"), nesterov=True
        )
        return ring.DiLoCo(inner, outer, **options)
    columns = options.pop("powersgd", None)
    if columns is not None:
        options["compression"] = ring.Compression.powersgd(rank=columns)
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


class Until(keras.callbacks.Callback):  # type: ignore[misc]  # Untyped.
    """Ends training when the test data are known so well."""

    def __init__(self, accuracy: float | None) -> None:
        super().__init__()
        self.accuracy = accuracy

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """All ranks have the same logs."""
        if self.accuracy is not None:
            assert logs is not None
            self.model.stop_training = logs["val_accuracy"] >= self.accuracy


def main() -> None:
    """Trains; the first epoch, which is traced and compiled in, is not counted."""
    task = json.loads(sys.argv[1])
    kind = task["way"]["kind"]
    is_alone = kind in ("alone", "keras")
    rank, size = int(os.environ["RING_KERAS_RANK"]), task["size"]
    if is_alone:
        for name in [name for name in os.environ if name.startswith("RING_KERAS_")]:
            del os.environ[name]
    if kind != "keras":
        ring.init()
        assert ring.size() == (1 if is_alone else size)
    keras.utils.set_random_seed(1)
    train, test = load_data(task["model"])
    count = len(train[0]) // size * size
    mine = tuple(array[rank:count:size] for array in train)
    data = tf.data.Dataset.from_tensor_slices(mine)
    data = data.shuffle(count // size, seed=rank).repeat().batch(BATCH)
    model = build_model(task["model"])
    model.compile(
        make_optimizer(task["way"]),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
        steps_per_execution=task["steps_per_execution"],
    )
    epochs = Epochs(counts=not is_alone)
    steps = task["steps"]
    until = Until(task.get("until"))
    began = time.perf_counter()
    model.fit(
        data,
        steps_per_epoch=steps,
        epochs=task["epochs"],
        verbose=0,
        validation_data=None if until.accuracy is None else test,
        callbacks=[epochs, until],
    )
    total_s = time.perf_counter() - began
    loss, accuracy = model.evaluate(*test, verbose=0)
    if rank == 0:
        pairs = list(zip(epochs.ends, epochs.ends[1:], strict=False))
        result = {
            "step_s": [(end[0] - begin[0]) / steps for begin, end in pairs],
            "step_bytes": [(end[1] - begin[1]) / steps for begin, end in pairs],
            "loss": loss,
            "accuracy": accuracy,
            "total_s": total_s,
        }
        Path(sys.argv[2]).write_text(json.dumps(result))
    if not is_alone:
        ring.barrier()


if __name__ == "__main__":
    main()
