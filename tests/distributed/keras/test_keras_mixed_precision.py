"""mixed_float16: every rank skips the same steps."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import training

import ring_keras as ring

STEPS = 6

optimizers = keras.optimizers
SCALING = {
    "by compile": lambda: ring.DistributedOptimizer(optimizers.SGD(0.1)),
    "inside": lambda: ring.DistributedOptimizer(
        optimizers.LossScaleOptimizer(optimizers.SGD(0.1), initial_scale=1024.0)
    ),
    "outside": lambda: optimizers.LossScaleOptimizer(
        ring.DistributedOptimizer(optimizers.Adam(0.01)), initial_scale=1024.0
    ),
    "adopted": lambda: optimizers.LossScaleOptimizer(
        optimizers.SGD(0.1), initial_scale=1024.0
    ),
    "accumulation": lambda: ring.DistributedOptimizer(
        optimizers.LossScaleOptimizer(
            optimizers.SGD(0.1, gradient_accumulation_steps=2), initial_scale=1024.0
        )
    ),
}


def overflow_worker(scaling):
    """One rank's third batch overflows: all must skip that step."""
    size, rank = ring.size(), ring.rank()
    x, y = (
        array[: STEPS * training.BATCH * size].copy() for array in training.arrays()
    )
    x[2 * training.BATCH * size + 1] = np.inf  # On rank 1.
    data = tf.data.Dataset.from_tensor_slices((x, y))
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = training.build(1 + rank)
        training.compile_model(model, SCALING[scaling]())
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


@pytest.mark.parametrize("scaling", SCALING)
@pytest.mark.parametrize("size", [2, 3])
def test_an_overflow_on_one_rank_skips_the_step_on_all(rank_pool, size, scaling):
    results = rank_pool(size).run(overflow_worker, args=(scaling,))

    assert all(result == results[0] for result in results)
    iterations, scale, _ = results[0]
    # Keras counts updates where gradients are accumulated.
    assert iterations == (STEPS - 1) // (2 if scaling == "accumulation" else 1)
    assert scale == (2.0**14 if scaling == "by compile" else 512.0)


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
