"""Training on n ranks is training in one process on the global batch."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import training
from support.features import Difference
from support.features.compare import compare, standard_callbacks
from support.run_ranks import run_ranks

import ring_keras as ring
from ring_keras import _native

STEPS = 20
LIMIT = 1e-6


def check(results) -> None:
    first = results[0]
    assert first.weights <= LIMIT
    assert first.metrics is None or first.metrics <= LIMIT
    assert all(result.state == first.state for result in results), "ranks differ"


def optimizer_worker(names):
    return [compare(training.OPTIMIZERS[name]) for name in names]


# The features are tested at 2 and 3 ranks; this is about numbers of them.
@pytest.mark.parametrize(
    ("size", "names"),
    [
        (1, ["sgd"]),
        pytest.param(1, ["adamw_global_clipnorm"], marks=pytest.mark.slow),
        pytest.param(4, ["sgd", "adamw_global_clipnorm"], marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_optimizers_match_one_process(rank_pool, size, names):

    results = rank_pool(size).run(optimizer_worker, args=(names,), timeout_s=120)

    for case in zip(*results, strict=True):
        check(case)


def lone_thread_worker():
    ring.init()
    return compare(training.OPTIMIZERS["adam"])


@pytest.mark.slow
def test_one_thread_for_ops_matches_one_process():
    env = {"TF_NUM_INTEROP_THREADS": "1"}
    check(run_ranks(lone_thread_worker, 2, env=env))


def tcp_worker():
    """The same over TCP."""
    transport = _native.transport_to(1 - ring.rank())
    adam = training.OPTIMIZERS["adam"]
    return transport, compare(adam)


def test_tcp_matches_one_process(rank_pool):
    results = rank_pool(2, env={"RING_KERAS_TRANSPORT": "tcp"}).run(tcp_worker)

    assert {transport for transport, _ in results} == {"tcp"}
    check([difference for _, difference in results])


def absent_examples_worker():
    """Weights that leave a rank, and then all ranks, nothing in a step."""
    size, rank = ring.size(), ring.rank()
    x, y = training.arrays()
    batch = training.BATCH * size
    weights = np.ones(len(x), np.float32)
    weights[batch : 2 * batch] = 0.0
    weights[2 * batch : 3 * batch : size] = 0.0
    data = tf.data.Dataset.from_tensor_slices((x, y, weights)).take(5 * batch)
    loss = keras.losses.BinaryCrossentropy(reduction="mean_with_sample_weight")
    regularizer = keras.regularizers.L2(0.05)  # It counts for all in any step.
    model = training.build(1 + rank, built=False, kernel_regularizer=regularizer)
    optimizer = ring.DistributedOptimizer(training.OPTIMIZERS["adam"]())
    model.compile(optimizer, loss)
    part = ring.data.shard(data)
    training.fit(model, part, training.BATCH, callbacks=standard_callbacks())
    alone = training.build(1, kernel_regularizer=regularizer)
    alone.compile(training.OPTIMIZERS["adam"](), loss)
    training.fit(alone, data, batch)
    difference = training.largest_difference(model.get_weights(), alone.get_weights())
    return Difference(difference, None, training.as_bytes(model.get_weights()))


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.slow
def test_a_step_without_examples_matches_one_process(rank_pool, size):
    try:
        keras.losses.BinaryCrossentropy(reduction="mean_with_sample_weight")
    except ValueError:
        pytest.skip("this Keras has no such reduction")
    check(rank_pool(size).run(absent_examples_worker))


def train_loop(model, x, y, batch, tape_of, in_function):
    optimizer = training.OPTIMIZERS["adam"]()
    optimizer.build(model.trainable_variables)
    if ring.size() > 1 and tape_of is ring.DistributedGradientTape:
        ring.broadcast_variables([*model.weights, *optimizer.variables], root_rank=0)
    unused = tf.Variable(1.0)

    def step(x, y):
        with tape_of(tf.GradientTape()) as tape:
            y_pred = model(x, training=True)
            loss = tf.reduce_mean(keras.losses.binary_crossentropy(y, y_pred))
        variables = model.trainable_variables
        gradients, none = tape.gradient(loss, (variables, unused))
        assert none is None
        optimizer.apply(gradients, variables)

    if in_function:
        step = tf.function(step)
    for start in range(0, len(x), batch):
        step(x[start : start + batch], y[start : start + batch])


def loop_worker():
    size, rank = ring.size(), ring.rank()
    x, y = training.arrays()
    count = STEPS * training.BATCH * size
    x, y = x[:count], y[:count]
    differences = []
    for in_function in (False, True):
        model = training.build(1 + rank)
        model.build((None, 6))
        train_loop(
            model,
            x[rank::size],
            y[rank::size],
            training.BATCH,
            ring.DistributedGradientTape,
            in_function,
        )
        alone = training.build(1)
        alone.build((None, 6))
        train_loop(alone, x, y, training.BATCH * size, lambda tape: tape, True)
        differences.append(
            training.largest_difference(model.get_weights(), alone.get_weights())
        )
    return differences


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_tape_loop_matches_one_process(rank_pool, size):
    for result in rank_pool(size).run(loop_worker):
        for difference in result:
            assert difference <= LIMIT
