"""Steps in which a rank has no batch of its own."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf
from support.run_ranks import run_ranks

import ring_keras as ring

SIZES = (4, 8)


def train() -> None:
    """Rank 0 has one batch, and rank 1 has two."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(sum(SIZES), 6)).astype(np.float32)
    y = rng.normal(size=(sum(SIZES), 1)).astype(np.float32) + 3
    first = sum(SIZES[: ring.rank()])
    own = slice(first, first + SIZES[ring.rank()])
    data = tf.data.Dataset.from_tensor_slices((x[own], y[own])).batch(4)
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
    model.compile(ring.DistributedOptimizer(keras.optimizers.SGD(0.5)), "mse")
    callbacks = [ring.callbacks.BroadcastGlobalVariables()]
    model.fit(ring.data.join(data), verbose=0, callbacks=callbacks)


def joined_worker() -> tuple[str, list[str]]:
    ring.init()
    comparison = ring.verify.compare(train, steps=2)
    return comparison.title, comparison.findings


def test_a_row_of_zeros_is_no_example() -> None:
    for title, findings in run_ranks(joined_worker, 2, timeout_s=120):
        assert title.startswith("2 steps")
        assert findings == []
