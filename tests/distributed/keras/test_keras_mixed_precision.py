"""mixed_float16: every rank skips the same steps."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import training

import ring_keras as ring

STEPS = 6


def overflow_worker(explicit):
    """One rank's third batch overflows: both must skip that step."""
    size, rank = ring.size(), ring.rank()
    x, y = (
        array[: STEPS * training.BATCH * size].copy() for array in training.arrays()
    )
    x[2 * training.BATCH * size + 1] = np.inf  # On rank 1.
    data = tf.data.Dataset.from_tensor_slices((x, y))
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = training.build(1 + rank)
        inner = keras.optimizers.SGD(0.1)
        if explicit:
            inner = keras.optimizers.LossScaleOptimizer(inner, initial_scale=1024.0)
        training.compile_model(model, ring.DistributedOptimizer(inner))
        training.fit(
            model,
            ring.data.shard(data),
            training.BATCH,
            callbacks=[ring.callbacks.BroadcastGlobalVariables()],
        )
    finally:
        keras.config.set_dtype_policy("float32")
    optimizer = model.optimizer
    assert isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    return (
        int(optimizer.iterations),
        float(optimizer.dynamic_scale.numpy()),
        training.as_bytes(model.get_weights()),
    )


@pytest.mark.parametrize("explicit", [False, True])
def test_an_overflow_on_one_rank_skips_the_step_on_all(rank_pool, explicit):
    first, second = rank_pool(2).run(overflow_worker, args=(explicit,))

    assert first == second
    iterations, scale, _ = first
    assert iterations == STEPS - 1
    assert scale == (512.0 if explicit else 2.0**14)


def unreachable_worker():
    """Without a callback nothing can reach the optimizer that compile() made."""
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = training.build(1)
        optimizer = ring.DistributedOptimizer(keras.optimizers.SGD(0.1))
        training.compile_model(model, optimizer)
        with pytest.raises(ring.RingKerasError, match="LossScaleOptimizer was put"):
            training.fit(model, training.dataset(8), 4)
    finally:
        keras.config.set_dtype_policy("float32")


def test_loss_scaling_that_cannot_be_reached_is_refused(rank_pool):
    rank_pool(2).run(unreachable_worker)
