"""Training on n ranks is training in one process on the global batch."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import training
from support.rank_processes import report
from support.run_ranks import run_ranks

import ring_keras as ring
from ring_keras import _native

STEPS = 20
LIMIT = 1e-6


def callbacks() -> list[keras.callbacks.Callback]:
    return [
        ring.callbacks.BroadcastGlobalVariables(),
        ring.callbacks.MetricAverage(),
    ]


def compare(make_optimizer, model_class=None, **compile_kwargs):
    """Trains on all ranks, then on rank 0 alone; the largest differences."""
    size, rank = ring.size(), ring.rank()
    data = training.dataset(training.steps_of(STEPS, size))
    model = training.build(1 + rank, model_class)  # Each rank its own start.
    optimizer = ring.DistributedOptimizer(make_optimizer())
    training.compile_model(model, optimizer, **compile_kwargs)
    history = training.fit(
        model,
        ring.data.shard(data, remainder="keep"),
        training.BATCH,
        callbacks=callbacks(),
    )
    weights = model.get_weights()
    if rank != 0:
        return 0.0, 0.0, training.as_bytes(weights)
    alone = training.build(1, model_class)
    training.compile_model(alone, make_optimizer(), run_eagerly=True)
    alone_history = training.fit(alone, data, training.BATCH * size)
    return (
        training.largest_difference(weights, alone.get_weights()),
        training.history_difference(history, alone_history),
        training.as_bytes(weights),
    )


def check(results) -> None:
    difference, history_difference, weights = results[0]
    assert difference <= LIMIT
    assert history_difference <= LIMIT
    assert all(result[2] == weights for result in results), "ranks differ"


def optimizer_worker(names):
    return [compare(training.OPTIMIZERS[name]) for name in names]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_optimizers_match_one_process(rank_pool, size):
    names = ["sgd", "adam", "adamw_clipnorm", "adamw_global_clipnorm"]

    results = rank_pool(size).run(optimizer_worker, args=(names,), timeout_s=120)

    for case in zip(*results, strict=True):
        check(case)


class CustomStep(keras.Model):
    """A train step of one's own, over a loss and an optimizer of the model's."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x, y, y_pred)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss, sample_weight=tf.shape(x)[0])
            else:
                metric.update_state(y, y_pred)
        return self.get_metrics_result()


class TapeStep(keras.Model):
    """A train step that averages gradients itself and assigns the weights."""

    def train_step(self, data):
        x, y = data
        tape = tf.GradientTape()
        if ring.size() > 1 and getattr(self, "distributed", True):
            tape = ring.DistributedGradientTape(tape)
        with tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x, y, y_pred)
        variables = self.trainable_variables
        for gradient, variable in zip(
            tape.gradient(loss, variables), variables, strict=True
        ):
            variable.assign_sub(0.1 * gradient)
        return self.compute_metrics(x, y, y_pred)


def mode_worker(mode):
    adam = training.OPTIMIZERS["adam"]
    if mode == "run_eagerly":
        return compare(adam, run_eagerly=True)
    if mode == "steps_per_execution":
        return compare(adam, steps_per_execution=7)
    if mode == "gradient_accumulation":
        return compare(training.OPTIMIZERS["accumulation"])
    if mode == "custom_train_step":
        return compare(adam, CustomStep)
    if mode == "multi_optimizer":
        return compare(multi_optimizer)
    if mode == "multi_optimizer_by_function":
        return compare(multi_optimizer_by_function)
    assert mode == "jit_compile"
    return compare(adam, jit_compile=True)


def multi_optimizer():
    return keras.optimizers.MultiOptimizer(
        keras.optimizers.OptimizerMap(
            training.OPTIMIZERS["sgd"](), {".*bias": training.OPTIMIZERS["adam"]()}
        )
    )


def multi_optimizer_by_function():
    """It learns of its optimizers only when it is built."""
    sgd, adam = training.OPTIMIZERS["sgd"](), training.OPTIMIZERS["adam"]()
    return keras.optimizers.MultiOptimizer(
        lambda variable: adam if variable.path.endswith("bias") else sgd
    )


needs_multi_optimizer = pytest.mark.skipif(
    not hasattr(keras.optimizers, "MultiOptimizer"), reason="this Keras has none"
)


@pytest.mark.parametrize(
    "mode",
    [
        "run_eagerly",
        "steps_per_execution",
        "gradient_accumulation",
        "custom_train_step",
        pytest.param("multi_optimizer", marks=needs_multi_optimizer),
        pytest.param("multi_optimizer_by_function", marks=needs_multi_optimizer),
        "jit_compile",
    ],
)
def test_modes_match_one_process(rank_pool, mode):
    check(rank_pool(2).run(mode_worker, args=(mode,), timeout_s=60))


def tcp_worker():
    """The same over TCP, with XLA asked for, twice: it says once that it is off."""
    ring.init()
    transport = _native.transport_to(1 - ring.rank())
    adam = training.OPTIMIZERS["adam"]
    return transport, [compare(adam, jit_compile=True) for _ in range(2)]


def test_tcp_matches_one_process():
    outcomes = run_ranks(
        tcp_worker, 2, env={"RING_KERAS_TRANSPORT": "tcp"}, check=False
    )

    assert all(outcome.ok for outcome in outcomes), report(outcomes, "tcp")
    assert {outcome.result[0] for outcome in outcomes} == {"tcp"}
    for number in range(2):
        check([outcome.result[1][number] for outcome in outcomes])
    assert [outcome.stderr.count("without XLA") for outcome in outcomes] == [1, 0]


def sample_weight_worker():
    """Divided by the sum of weights, which differs between the ranks."""
    size, rank = ring.size(), ring.rank()
    x, y = training.arrays()
    weights = np.random.default_rng(5).uniform(0, 3, len(x)).astype(np.float32)
    count = training.steps_of(STEPS, size)
    data = tf.data.Dataset.from_tensor_slices((x, y, weights)).take(count)
    loss = keras.losses.BinaryCrossentropy(reduction="mean_with_sample_weight")
    model = training.build(1 + rank)
    optimizer = ring.DistributedOptimizer(training.OPTIMIZERS["sgd"]())
    model.compile(optimizer, loss)
    part = ring.data.shard(data, remainder="keep")
    training.fit(model, part, training.BATCH, callbacks=callbacks())
    alone = training.build(1)
    alone.compile(training.OPTIMIZERS["sgd"](), loss)
    training.fit(alone, data, training.BATCH * size)
    difference = training.largest_difference(model.get_weights(), alone.get_weights())
    return difference, 0.0, training.as_bytes(model.get_weights())


def test_a_mean_over_sample_weights_matches_one_process(rank_pool):
    try:
        keras.losses.BinaryCrossentropy(reduction="mean_with_sample_weight")
    except ValueError:
        pytest.skip("this Keras has no such reduction")
    check(rank_pool(2).run(sample_weight_worker))


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
    model = training.build(1 + rank)
    optimizer = ring.DistributedOptimizer(training.OPTIMIZERS["adam"]())
    model.compile(optimizer, loss)
    part = ring.data.shard(data)
    training.fit(model, part, training.BATCH, callbacks=callbacks())
    alone = training.build(1)
    alone.compile(training.OPTIMIZERS["adam"](), loss)
    training.fit(alone, data, batch)
    difference = training.largest_difference(model.get_weights(), alone.get_weights())
    return difference, 0.0, training.as_bytes(model.get_weights())


@pytest.mark.parametrize("size", [2, 3])
def test_a_step_without_examples_matches_one_process(rank_pool, size):
    try:
        keras.losses.BinaryCrossentropy(reduction="mean_with_sample_weight")
    except ValueError:
        pytest.skip("this Keras has no such reduction")
    check(rank_pool(size).run(absent_examples_worker))


def tape_in_step_worker():
    """A step whose only communication is the tape's."""
    size, rank = ring.size(), ring.rank()
    data = training.dataset(training.steps_of(STEPS, size))
    model = training.build(1 + rank, TapeStep)
    training.compile_model(model, training.OPTIMIZERS["sgd"]())
    training.fit(
        model,
        ring.data.shard(data, remainder="keep"),
        training.BATCH,
        callbacks=[ring.callbacks.BroadcastGlobalVariables()],
    )
    weights = model.get_weights()
    if rank != 0:
        return 0.0, 0.0, training.as_bytes(weights)
    alone = training.build(1, TapeStep)
    alone.distributed = False
    training.compile_model(alone, training.OPTIMIZERS["sgd"]())
    training.fit(alone, data, training.BATCH * size)
    difference = training.largest_difference(weights, alone.get_weights())
    return difference, 0.0, training.as_bytes(weights)


def test_tape_in_a_train_step_matches_one_process(rank_pool):
    check(rank_pool(2).run(tape_in_step_worker))


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


@pytest.mark.parametrize("size", [2, 3])
def test_tape_loop_matches_one_process(rank_pool, size):
    for result in rank_pool(size).run(loop_worker):
        for difference in result:
            assert difference <= LIMIT


def embedding_worker():
    """Sparse gradients: each rank looks up other rows, and not as many."""
    size, rank = ring.size(), ring.rank()
    generator = np.random.default_rng(3)
    words = generator.integers(0, 30, size=(61, 5))
    labels = generator.integers(0, 2, size=(61, 1)).astype(np.float32)
    data = tf.data.Dataset.from_tensor_slices((words, labels))

    def build(seed):
        keras.utils.set_random_seed(seed)
        return keras.Sequential(
            [
                keras.layers.Embedding(30, 4),
                keras.layers.GlobalAveragePooling1D(),
                keras.layers.Dense(1, activation="sigmoid"),
            ]
        )

    model = build(1 + rank)
    optimizer = ring.DistributedOptimizer(training.OPTIMIZERS["sgd"]())
    training.compile_model(model, optimizer)
    part = ring.data.shard(data, remainder="keep")
    history = training.fit(model, part, 8, callbacks=callbacks())
    alone = build(1)
    training.compile_model(alone, training.OPTIMIZERS["sgd"]())
    alone_history = training.fit(alone, data, 8 * size)
    return (
        training.largest_difference(model.get_weights(), alone.get_weights()),
        training.history_difference(history, alone_history),
        training.as_bytes(model.get_weights()),
    )


def test_sparse_gradients_match_one_process(rank_pool):
    check(rank_pool(2).run(embedding_worker))
