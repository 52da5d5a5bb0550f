"""What a step of `fit` costs on one GPU with ring_keras, beside bare Keras.

One rank: what is left is ours alone. Both models train in turn, several times; the
ratio is of the medians. Prints Markdown; names of models choose some of them.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import ring_keras as ring

ROUNDS = 7


def dense() -> tuple[keras.Model, tuple[int, ...], int]:
    """Small steps: what a step costs beside its work."""
    layers = [keras.layers.Dense(1024, "relu") for _ in range(4)]
    return keras.Sequential([*layers, keras.layers.Dense(1000)]), (256, 784), 200


def deep() -> tuple[keras.Model, tuple[int, ...], int]:
    """Many small variables."""
    layers = [keras.layers.Dense(256, "relu") for _ in range(60)]
    return keras.Sequential([*layers, keras.layers.Dense(1000)]), (256, 256), 100


def resnet50() -> tuple[keras.Model, tuple[int, ...], int]:
    """Long steps."""
    model = keras.applications.ResNet50(weights=None, classifier_activation=None)
    return model, (128, 224, 224, 3), 20


def compiled(
    build: Callable[[], tuple[keras.Model, tuple[int, ...], int]],
    wrapped: bool,
    jit_compile: bool,
) -> Callable[[], float]:
    """Trains an epoch when called; seconds per step."""
    keras.utils.set_random_seed(1)
    model, shape, steps = build()
    optimizer = keras.optimizers.SGD(0.001, momentum=0.9)
    model.compile(
        ring.DistributedOptimizer(optimizer) if wrapped else optimizer,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=jit_compile,
    )
    random = np.random.default_rng(1)
    batch = (
        tf.constant(random.normal(size=shape), tf.float32),
        tf.constant(random.integers(1000, size=shape[0])),
    )
    data = tf.data.Dataset.from_tensors(batch).repeat()
    callbacks = [ring.callbacks.Distributed()] if wrapped else []

    def train() -> float:
        clock = _Clock()
        model.fit(data, steps_per_epoch=steps, verbose=0, callbacks=[*callbacks, clock])
        return clock.seconds / (steps - 1)

    return train


class _Clock(keras.callbacks.Callback):
    """From the end of the first step to that of the last."""

    seconds = 0.0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == 0:
            self._start = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.seconds = time.perf_counter() - self._start


def main() -> None:
    """Prints a line for each model, compiled and not."""
    ring.init()
    print(f"{ring.size()} rank, {tf.config.list_physical_devices('GPU')}")
    print("| model | jit | bare Keras ms | with ring_keras ms | ratio (range) |")
    print("|---|---|---|---|---|")
    names = sys.argv[1:] or ["dense", "deep", "resnet50"]
    for build in (globals()[name] for name in names):
        # Long steps as Keras compiles them: to compile takes a minute.
        for jit_compile in (True,) if build is resnet50 else (True, False):
            bare = compiled(build, False, jit_compile)
            ours = compiled(build, True, jit_compile)
            bare(), ours()  # Traced, compiled.
            rounds = [(bare(), ours()) for _ in range(ROUNDS)]
            alone, with_us = (
                statistics.median(times) * 1000 for times in zip(*rounds, strict=True)
            )
            ratios = sorted(one / other for one, other in rounds)
            print(
                f"| {build.__name__} | {'yes' if jit_compile else 'no'} | {alone:.3f} "
                f"| {with_us:.3f} | **{with_us / alone:.3f}** "
                f"({1 / ratios[-1]:.3f}-{1 / ratios[0]:.3f}) |",
                flush=True,
            )


if __name__ == "__main__":
    main()
