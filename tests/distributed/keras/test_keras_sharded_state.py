"""Optimizers whose state the ranks divide: the same training, with less memory."""

from __future__ import annotations

from collections.abc import Callable

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import training
from support.sharded_models import (
    MAKERS,
    STEPS,
    build,
    fit,
    needs_several,
    state_bytes,
)

import ring_keras as ring
from ring_keras import _libraries


def fit_of_unknown_length(name: str, shard_state: bool) -> keras.Model:
    """At its end TensorFlow would run what needs no batch, such as weight decay.

    The state that is not divided has data of known length, for comparison.
    """
    model = build(1 + ring.rank())
    optimizer = ring.DistributedOptimizer(MAKERS[name](), shard_state=shard_state)
    training.compile_model(model, optimizer)
    data = training.dataset(training.steps_of(STEPS, ring.size(), uneven=False))
    own = ring.data.shard(data)
    if shard_state:
        own = own.filter(lambda x, y: True)
    training.fit(model, own, training.BATCH, epochs=2)
    return model


def uneven_fit(name: str, shard_state: bool) -> keras.Model:
    """A rank without data goes on with empty batches."""
    rank = ring.rank()
    model = build(1 + rank)
    optimizer = ring.DistributedOptimizer(MAKERS[name](), shard_state=shard_state)
    training.compile_model(model, optimizer)
    own = training.dataset().skip(100 * rank).take(12 + 8 * rank)
    model.fit(ring.data.join(own.batch(training.BATCH)), verbose=0)
    return model


def loop(name: str, shard_state: bool, in_function: bool) -> keras.Model:
    size, rank = ring.size(), ring.rank()
    x, y = training.arrays()
    model = build(1)
    optimizer = ring.DistributedOptimizer(MAKERS[name](), shard_state=shard_state)

    def step(x, y):
        with tf.GradientTape() as tape:
            y_pred = model(x, training=True)
            loss = tf.reduce_mean(keras.losses.binary_crossentropy(y, y_pred))
            if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
                loss = optimizer.scale_loss(loss)
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)

    optimizer.build(model.trainable_variables)
    if in_function:
        step = tf.function(step)
    batch = training.BATCH
    for start in range(rank * batch, STEPS * size * batch, size * batch):
        step(x[start : start + batch], y[start : start + batch])
    model.optimizer = optimizer
    return model


WAYS: dict[str, Callable[[str, bool], keras.Model]] = {
    "fit": fit,
    "jit": lambda name, shard: fit(name, shard, jit_compile=True),
    "eager_fit": lambda name, shard: fit(name, shard, run_eagerly=True),
    "several_steps": lambda name, shard: fit(name, shard, steps_per_execution=2),
    "unknown_length": fit_of_unknown_length,
    "uneven": lambda name, shard: uneven_fit(name, shard),
    "eager_loop": lambda name, shard: loop(name, shard, in_function=False),
    "loop": lambda name, shard: loop(name, shard, in_function=True),
}


def compare_worker(way: str, names: list[str]) -> dict[str, list[bytes]]:
    """The weights with and without.

    XLA rounds the two steps in its own way on a GPU: there they are compared here.
    """
    result = {}
    for name in names:
        models = [WAYS[way](name, shard_state) for shard_state in (False, True)]
        weights = [model.get_weights() for model in models]
        if tf.config.get_visible_devices("GPU"):
            for pair in zip(*weights, strict=True):
                np.testing.assert_allclose(*pair, rtol=1e-4, atol=1e-6, err_msg=name)
            weights = weights[1:]
        result[name] = [training.as_bytes(one) for one in weights]
    return result


def require_same_weights(results: list[dict[str, list[bytes]]]) -> None:
    for name in results[0]:
        everyones = [weights for result in results for weights in result[name]]
        assert len(set(everyones)) == 1, f"{name}: weights differ"


# Momentum, decay with exclusions, a norm of the whole variable and averages, a schedule
# and a norm of all gradients.
SOME = ["sgd", "adamw", "averages_taken", "accumulation"]


OTHERS = [name for name in MAKERS if name != "averages_taken"]


@pytest.mark.parametrize(
    "names", [["averages_taken"], pytest.param(["several"], marks=needs_several)]
)
def test_optimizers_train_the_same_weights(rank_pool, names):
    require_same_weights(rank_pool(2).run(compare_worker, args=("fit", names)))


@pytest.mark.slow
@pytest.mark.parametrize("names", [OTHERS[n::4] for n in range(4)], ids="-".join)
def test_every_optimizer_trains_the_same_weights(rank_pool, names):
    require_same_weights(rank_pool(2).run(compare_worker, args=("fit", names)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "name"),
    [
        (2, "accumulated_muon" if "accumulated_muon" in MAKERS else "adamw"),
        (3, "accumulated_muon"),
        (3, "adamw"),
    ],
)
def test_data_of_unknown_length_train_the_same_weights(rank_pool, size, name):
    if name not in MAKERS:
        pytest.skip("needs a newer Keras")
    results = rank_pool(size).run(compare_worker, args=("unknown_length", [name]))
    require_same_weights(results)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["several_steps", "uneven"])
def test_ways_of_fit_train_the_same_weights(rank_pool, way):
    require_same_weights(rank_pool(2).run(compare_worker, args=(way, SOME)))


@pytest.mark.parametrize(
    ("way", "names"),
    [
        ("loop", ["accumulation"]),
        pytest.param("loop", ["sgd"], marks=pytest.mark.slow),
        pytest.param(
            "loop",
            ["several", "several_accumulate"],
            marks=[pytest.mark.slow, needs_several],
        ),
        pytest.param("eager_loop", ["sgd", "accumulation"], marks=pytest.mark.slow),
    ],
)
def test_loops_train_the_same_weights(rank_pool, way, names):
    require_same_weights(rank_pool(2).run(compare_worker, args=(way, names)))


@pytest.mark.skipif(
    not _libraries.has_xla_kernels(), reason="needs TensorFlow 2.20 or newer"
)
@pytest.mark.parametrize(
    "names",
    [
        pytest.param(["sgd"], marks=pytest.mark.slow),
        pytest.param(["several"], marks=[pytest.mark.slow, needs_several]),
        pytest.param(SOME, marks=pytest.mark.slow),
    ],
    ids="-".join,
)
def test_compiled_steps_train_the_same_weights(rank_pool, names):
    require_same_weights(rank_pool(2).run(compare_worker, args=("jit", names)))


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_three_ranks_train_the_same_weights(rank_pool, way):
    names = [*SOME, "adam", "clipvalue", "clipnorm", "lamb", "adafactor_crossed"]
    if way == "jit":
        if not _libraries.has_xla_kernels():
            pytest.skip("needs TensorFlow 2.20 or newer")
        names = ["averages_taken", "adafactor_crossed"]  # Each compiles for long.
    require_same_weights(rank_pool(3).run(compare_worker, args=(way, names)))


def with_two_optimizers(shard_state: bool) -> bytes:
    """One model with two optimizers, each of which trains a part of it."""
    model = build(1)
    parts = model.trainable_variables[:2], model.trainable_variables[2:]
    both = [
        ring.DistributedOptimizer(MAKERS[name](), shard_state=shard_state)
        for name in ("adam", "lamb")
    ]

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(keras.losses.binary_crossentropy(y, model(x)))
        gradients = tape.gradient(loss, [*parts[0], *parts[1]])
        both[0].apply(gradients[:2], parts[0])
        both[1].apply(gradients[2:], parts[1])

    x, y = training.arrays()
    for optimizer, part in zip(both, parts, strict=True):
        optimizer.build(part)
    for start in range(ring.rank(), 12, ring.size()):
        step(x[start:360:12], y[start:360:12])
    return training.as_bytes(model.get_weights())


def two_optimizers_worker() -> list[bytes]:
    return [with_two_optimizers(shard_state) for shard_state in (False, True)]


@pytest.mark.slow
def test_two_optimizers_train_the_same_weights(rank_pool):
    found = rank_pool(2).run(two_optimizers_worker)

    assert len({weights for rank in found for weights in rank}) == 1


def mixed_precision_worker() -> list[bytes]:
    """`compile` puts a LossScaleOptimizer around ours."""
    keras.config.set_dtype_policy("mixed_float16")
    try:
        models = [fit("adam", shard_state) for shard_state in (False, True)]
    finally:
        keras.config.set_dtype_policy("float32")
    assert isinstance(models[1].optimizer, keras.optimizers.LossScaleOptimizer)
    assert state_bytes(models[1].optimizer) < state_bytes(models[0].optimizer)
    return [training.as_bytes(model.get_weights()) for model in models]


@pytest.mark.slow
def test_mixed_precision_trains_the_same_weights(rank_pool):
    found = rank_pool(2).run(mixed_precision_worker)

    assert len({weights for rank in found for weights in rank}) == 1
