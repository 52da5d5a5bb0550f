"""A real `fit` in which one rank, its data or its link is slow."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import ring_keras as ring

BATCH = 8
WIDTH = 16


class Sleep(keras.layers.Layer):
    """Takes some time in the forward pass."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def call(self, inputs: Any) -> Any:
        slept = tf.numpy_function(self._sleep, [inputs], inputs.dtype)
        slept.set_shape(inputs.shape)
        return inputs + 0 * tf.stop_gradient(slept)

    def _sleep(self, values: Any) -> Any:
        time.sleep(self._seconds)
        return values


def dataset(steps: int, seconds: float) -> tf.data.Dataset:
    """Batches that take some time each to come."""

    def wait(number: Any) -> Any:
        time.sleep(seconds)
        return np.ones((BATCH, WIDTH), np.float32)

    def batch(number: Any) -> Any:
        x = tf.numpy_function(wait, [number], tf.float32)
        x.set_shape((BATCH, WIDTH))
        return x, tf.reduce_sum(x, axis=1, keepdims=True)

    return tf.data.Dataset.range(steps).map(batch)


def train(
    log_dir: Path,
    *,
    steps: int = 60,
    slow_compute: int | None = None,
    slow_input: int | None = None,
    seconds: float = 0.05,
    units: int = WIDTH,
    checkpoint: Path | None = None,
    bucket_size_bytes: int | None = None,
    process_set: ring.ProcessSet = ring.global_process_set,
    **options: Any,
) -> ring.monitoring.Stats:
    """On this rank of a job; 2 epochs of `steps` steps.

    Args:
        log_dir: Of the callback.
        steps: Of each epoch.
        slow_compute: The rank whose forward pass takes `seconds` more.
        slow_input: The rank whose batches do.
        seconds: How much.
        units: Of a layer, whose gradients are `units` squared in number.
        checkpoint: Where to save the model after each epoch that is the best so far.
        bucket_size_bytes: Of the optimizer.
        process_set: The ranks that train together; this one is among them.
        **options: Of the callback.
    """
    rank = ring.rank()
    keras.utils.set_random_seed(0)
    inputs = keras.Input((WIDTH,))
    x = keras.layers.Dense(units)(inputs)
    x = keras.layers.Dense(units)(x)
    x = Sleep(seconds if rank == slow_compute else 0.0)(x)
    model = keras.Model(inputs, keras.layers.Dense(1)(x))
    optimizer = ring.DistributedOptimizer(
        keras.optimizers.SGD(1e-6),
        bucket_size_bytes=bucket_size_bytes,
        process_set=process_set,
    )
    # XLA on a GPU runs no Python.
    model.compile(optimizer, "mse", jit_compile=False)
    callbacks = [
        ring.callbacks.BroadcastGlobalVariables(),
        ring.callbacks.MetricAverage(),
        ring.callbacks.TensorBoard(log_dir, **{"update_freq": 5, **options}),
    ]
    if checkpoint is not None:
        callbacks.append(
            ring.callbacks.BestModelCheckpoint(
                "loss", filepath=str(checkpoint), save_weights_only=True
            )
        )
    model.fit(
        dataset(steps, seconds if rank == slow_input else 0.0),
        epochs=2,
        verbose=0,
        callbacks=callbacks,
    )
    return ring.stats()


def init_and_train(*args: Any, **kwargs: Any) -> ring.monitoring.Stats:
    """The same on a rank that has not joined yet."""
    ring.init()
    return train(*args, **kwargs)
