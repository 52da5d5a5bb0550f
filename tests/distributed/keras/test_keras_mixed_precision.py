"""mixed_float16: every rank skips the same steps."""

from __future__ import annotations

import contextlib
import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import training
from support.variants import variants

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


def _several():
    return optimizers.MultiOptimizer(
        optimizers.OptimizerMap(optimizers.SGD(0.1), {".*bias": optimizers.Adam(0.01)})
    )


KINDS = {"plain": functools.partial(optimizers.SGD, 0.1), "several": _several}


@contextlib.contextmanager
def overflow_on_rank_1():
    """Data whose third batch overflows there, and the policy for it."""
    size = ring.size()
    x, y = (
        array[: STEPS * training.BATCH * size].copy() for array in training.arrays()
    )
    x[2 * training.BATCH * size + 1] = np.inf
    keras.config.set_dtype_policy("mixed_float16")
    try:
        yield tf.data.Dataset.from_tensor_slices((x, y))
    finally:
        keras.config.set_dtype_policy("float32")


def overflow_worker(scaling, **options):
    """One rank's third batch overflows: all must skip that step."""
    with overflow_on_rank_1() as data:
        model = training.build(1 + ring.rank())
        training.compile_model(model, SCALING[scaling](), **options)
        training.fit(
            model,
            ring.data.shard(data),
            training.BATCH,
            callbacks=[ring.callbacks.BroadcastGlobalVariables()],
        )
    return outcome(model)


def outcome(model):
    """What must be the same on every rank."""
    optimizer = model.optimizer
    assert isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    return (
        int(optimizer.iterations),
        float(optimizer.dynamic_scale.numpy()),
        training.as_bytes(model.get_weights()),
    )


@pytest.mark.parametrize("scaling", variants(["by compile"], SCALING))
@pytest.mark.parametrize("size", variants([2], [3]))
def test_an_overflow_on_one_rank_skips_the_step_on_all(rank_pool, size, scaling):
    results = rank_pool(size).run(overflow_worker, args=(scaling,))

    assert all(result == results[0] for result in results)
    iterations, scale, _ = results[0]
    # Keras counts updates where gradients are accumulated.
    assert iterations == (STEPS - 1) // (2 if scaling == "accumulation" else 1)
    assert scale == (2.0**14 if scaling == "by compile" else 512.0)


def test_a_step_that_adds_up_may_be_skipped_eagerly(rank_pool):
    """Nothing has been reduced then, and nothing has to be."""
    worker = functools.partial(overflow_worker, "accumulation", run_eagerly=True)
    results = rank_pool(2).run(worker)
    assert results[0] == results[1]


def no_callback_worker(make_optimizer, run_eagerly):
    """The hook reaches the optimizer that compile() puts around the user's."""
    with overflow_on_rank_1() as data:
        model = training.build(1)
        training.compile_model(
            model,
            ring.DistributedOptimizer(make_optimizer()),
            run_eagerly=run_eagerly,
        )
        training.fit(model, ring.data.shard(data), training.BATCH)
    return outcome(model)


@pytest.mark.parametrize(
    ("kind", "run_eagerly"),
    variants(
        [("plain", True)], [("several", False), ("plain", False), ("several", True)]
    ),
)
def test_what_compile_adds_is_hooked_without_a_callback(rank_pool, kind, run_eagerly):
    results = rank_pool(2).run(no_callback_worker, args=(KINDS[kind], run_eagerly))

    assert results[0] == results[1]
    iterations, scale, _ = results[0]
    assert iterations == STEPS - 1
    assert scale == 2.0**14


def in_a_loop_worker():
    """Hooked only in the midst of its first `apply`, where rank 1 overflows."""
    variable = keras.Variable([1.0])
    inner = ring.DistributedOptimizer(optimizers.SGD(1.0))
    optimizer = optimizers.LossScaleOptimizer(inner, initial_scale=2.0)
    for value in ([1.0, np.inf][ring.rank()], 2.0 + 2 * ring.rank()):
        optimizer.apply([tf.constant([value])], [variable])
    return float(variable.numpy()[0]), int(optimizer.iterations)


def test_the_first_apply_agrees_on_inf_too(rank_pool):
    # The first step halves the scale, from 2 to 1; then 2 and 4 are averaged.
    assert rank_pool(2).run(in_a_loop_worker) == [(-2.0, 1)] * 2


def built_before_worker():
    """Nothing can be done any more: all ranks say so."""
    variable = keras.Variable([1.0])
    inner = optimizers.SGD(1.0)
    optimizer = optimizers.LossScaleOptimizer(inner)
    optimizer.build([variable])
    ring.DistributedOptimizer(inner)
    with pytest.raises(ring.RingKerasError, match="LossScaleOptimizer was put"):
        optimizer.apply([tf.constant([1.0])], [variable])


def test_loss_scaling_that_cannot_be_reached_is_refused(rank_pool):
    rank_pool(2).run(built_before_worker)
