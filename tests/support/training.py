"""A small job to train, on ranks and in one process, and how to compare."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import ring_keras as ring

COUNT = 400
BATCH = 4

OPTIMIZERS: dict[str, Callable[[], keras.optimizers.Optimizer]] = {
    "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "adamw_clipnorm": lambda: keras.optimizers.AdamW(0.01, clipnorm=0.05),
    "adamw_global_clipnorm": lambda: keras.optimizers.AdamW(0.01, global_clipnorm=0.05),
    "loss_scaled": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.Adam(0.01)
    ),
    "accumulation": lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2),
}


@functools.cache
def arrays() -> tuple[np.ndarray, np.ndarray]:
    """Examples of a binary decision."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(COUNT, 6)).astype(np.float32)
    noise = generator.normal(size=COUNT)
    y = (x.sum(axis=1) + noise > 0).astype(np.float32)[:, None]
    return x, y


def dataset(count: int = COUNT) -> tf.data.Dataset:
    """The first `count` examples, one by one."""
    x, y = arrays()
    return tf.data.Dataset.from_tensor_slices((x[:count], y[:count]))


def steps_of(steps: int, size: int, uneven: bool = True) -> int:
    """How many examples make that many global steps, the last one uneven."""
    return steps * BATCH * size - (1 if uneven and size > 1 else 0)


def build(
    seed: int,
    cls: type[keras.Model] | None = None,
    *,
    built: bool = True,
    **layer_kwargs: Any,
) -> keras.Model:
    """A network whose initial weights depend on `seed` alone."""
    return assemble(
        seed,
        lambda: [
            keras.layers.Dense(8, activation="tanh", **layer_kwargs),
            keras.layers.Dense(1, activation="sigmoid", dtype="float32"),
        ],
        cls,
        built=built,
    )


def assemble(
    seed: int,
    make_layers: Callable[[], list[keras.layers.Layer]],
    cls: type[keras.Model] | None,
    *,
    built: bool = True,
) -> keras.Model:
    """A model of these layers; of class `cls`, if given, which is functional.

    One that is not built gets its variables while its first step is traced.
    """
    keras.utils.set_random_seed(seed)
    layers = make_layers()
    if not built:
        return keras.Sequential(layers)
    inputs = keras.Input((6,))
    if cls is None:
        return keras.Sequential([inputs, *layers])
    outputs = inputs
    for layer in layers:
        outputs = layer(outputs)
    return cls(inputs, outputs)


def compile_model(
    model: keras.Model, optimizer: keras.optimizers.Optimizer, **kwargs: Any
) -> keras.Model:
    """Compiles with metrics, of which averaging logs would get one wrong."""
    # An AUC would, too, and is a fifth of what a model takes to trace.
    model.compile(
        optimizer,
        loss="binary_crossentropy",
        metrics=["accuracy", keras.metrics.RootMeanSquaredError(name="rms")],
        **kwargs,
    )
    return model


def distributed_model(seed: int) -> keras.Model:
    """The network, compiled for all ranks."""
    return compile_model(build(seed), ring.DistributedOptimizer(OPTIMIZERS["sgd"]()))


def fit(
    model: keras.Model, data: tf.data.Dataset, batch: int, **kwargs: Any
) -> dict[str, list[float]]:
    """`model.fit`, quietly."""
    return model.fit(data.batch(batch), shuffle=False, verbose=0, **kwargs).history


def largest_difference(ours: list[np.ndarray], theirs: list[np.ndarray]) -> float:
    """The largest difference of one number in two lists of arrays."""
    return max(
        float(np.abs(a.astype(np.float64) - b).max())
        for a, b in zip(ours, theirs, strict=True)
    )


def history_difference(
    ours: dict[str, list[float]], theirs: dict[str, list[float]]
) -> float:
    """The same of two histories."""
    assert set(ours) == set(theirs), (sorted(ours), sorted(theirs))
    return max(
        float(np.abs(np.subtract(ours[key], theirs[key])).max()) for key in theirs
    )


def as_bytes(weights: list[np.ndarray]) -> bytes:
    """For comparing weights bit by bit."""
    return b"".join(np.ascontiguousarray(weight).tobytes() for weight in weights)
