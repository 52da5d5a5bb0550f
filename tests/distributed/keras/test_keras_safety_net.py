"""Ranks whose variables come apart find it, or are put together again."""

from __future__ import annotations

import logging

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl import logging as absl_logging
from support import training
from support.variants import variants

import ring_keras as ring


class Warnings(logging.Handler):
    """What ring_keras warns of inside a block."""

    def __init__(self):
        super().__init__()
        self.texts = []

    def emit(self, record):
        if "ring_keras" in record.getMessage():
            self.texts.append(record.getMessage())

    def __enter__(self):
        absl_logging.get_absl_logger().addHandler(self)
        return self

    def __exit__(self, *_):
        absl_logging.get_absl_logger().removeHandler(self)


def ours():
    return [ring.callbacks.BroadcastGlobalVariables(), ring.callbacks.MetricAverage()]


def only_the_optimizer_worker(built, eagerly):
    """Differently seeded ranks; beside them one process with the root's seed."""
    data = training.dataset(8 * ring.size())

    def build(seed):
        model = training.build(seed)
        if built:
            model.build((None, 6))
        return model

    with Warnings() as warnings:
        model = build(1 + ring.rank())
        model.compile(
            ring.DistributedOptimizer(keras.optimizers.Adam(0.1)),
            "mse",
            run_eagerly=eagerly,
        )
        training.fit(model, ring.data.shard(data), 8, epochs=2)
        texts = list(warnings.texts)
        # Another model of the same form is another one to compare.
        again = build(5 + ring.rank())
        again.compile(ring.DistributedOptimizer("sgd"), "mse", run_eagerly=eagerly)
        training.fit(again, ring.data.shard(data), 8)
    alone = build(1)
    alone.compile(keras.optimizers.Adam(0.1), "mse", run_eagerly=eagerly)
    training.fit(alone, data, 8 * ring.size(), epochs=2)
    trained = [v.numpy() for v in model.trainable_variables]
    expected = [v.numpy() for v in alone.trainable_variables]
    return {
        "weights": training.as_bytes(trained),
        "again": training.as_bytes([v.numpy() for v in again.trainable_variables]),
        "difference": training.largest_difference(trained, expected),
        "warnings": texts,
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("built", "eagerly"),
    [
        (True, False),
        (False, False),
        (True, True),
    ],
)
def test_ranks_with_the_optimizer_alone_start_alike(rank_pool, built, eagerly):
    first, second = rank_pool(2).run(only_the_optimizer_worker, args=(built, eagerly))

    assert first["weights"] == second["weights"]
    assert first["again"] == second["again"]
    assert first["warnings"] == second["warnings"] == []
    assert first["difference"] < 1e-6


def only_the_tape_worker(in_graph):
    model = training.build(1 + ring.rank())
    model.build((None, 6))
    before = training.as_bytes(model.get_weights())
    x, y = (array[: 4 * ring.size()] for array in training.arrays())

    def step(x, y):
        with ring.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_mean(tf.square(model(x) - y))
        gradients = tape.gradient(loss, model.trainable_variables)
        for gradient, variable in zip(
            gradients, model.trainable_variables, strict=True
        ):
            variable.assign_sub(0.1 * gradient)

    step = tf.function(step) if in_graph else step
    for _ in range(2):
        step(ring.data.shard(x), ring.data.shard(y))
    return training.as_bytes(model.get_weights()), before


@pytest.mark.parametrize(
    "in_graph", [True, pytest.param(False, marks=pytest.mark.slow)]
)
def test_a_loop_without_a_broadcast_starts_alike(rank_pool, in_graph):
    results = rank_pool(2).run(only_the_tape_worker, args=(in_graph,))

    (first, first_before), (second, second_before) = results
    assert first_before != second_before
    assert first == second


class TwoParts(keras.Model):
    """Two models in one, of which a tape of ours trains the first alone."""

    def __init__(self):
        super().__init__()
        self.first = keras.layers.Dense(1, name="first")
        self.second = keras.layers.Dense(1, name="second")

    def call(self, x):
        return self.first(x) + self.second(x)

    def train_step(self, data):
        x, y = data
        with (
            ring.DistributedGradientTape(tf.GradientTape()) as tape,
            tf.GradientTape() as own,
        ):
            loss = tf.reduce_mean(tf.square(self(x) - y))
        for each, part in ((tape, self.first), (own, self.second)):
            variables = part.trainable_variables
            for gradient, variable in zip(
                each.gradient(loss, variables), variables, strict=True
            ):
                variable.assign_sub(0.1 * gradient)
        return {"loss": loss}


def two_tapes_worker(callback, epochs):
    keras.utils.set_random_seed(1)
    model = TwoParts()
    model.compile(keras.optimizers.SGD(0.1))
    seen = []
    with pytest.raises(ring.RankMismatchError) as caught:
        training.fit(
            model,
            ring.data.shard(training.dataset(16)),
            4,
            epochs=epochs,
            callbacks=[
                callback(),
                keras.callbacks.LambdaCallback(
                    on_epoch_end=lambda epoch, logs: seen.append(epoch)
                ),
            ],
        )
    return str(caught.value), seen


@pytest.mark.parametrize(
    "callback",
    [
        ring.callbacks.BroadcastGlobalVariables,
        pytest.param(ring.callbacks.MetricAverage, marks=pytest.mark.slow),
    ],
)
def test_a_part_that_trains_alone_is_found_in_the_first_epoch(rank_pool, callback):
    results = rank_pool(2).run(two_tapes_worker, args=(callback, 2))

    assert results[0] == results[1]
    message, epochs = results[0]
    assert epochs == [], "found before anything is saved"
    assert "after the first epoch, variable 'two_parts" in message
    assert "second/kernel' differs across ranks" in message
    assert "ranks [0] have one value, ranks [1] another" in message
    assert "DistributedGradientTape" in message


def loaded_on_one_rank_worker():
    """A second fit, before which the first rank alone has loaded something."""
    # Keras counts layers for their names, and an earlier test had one more on a rank.
    keras.utils.clear_session(free_memory=False)
    model = training.distributed_model(1)
    model.optimizer.learning_rate = 0.0
    data = ring.data.shard(training.dataset(16))
    training.fit(model, data, 4)
    loaded = [weight + 1 for weight in model.get_weights()]
    if ring.rank() == 0:
        model.set_weights(loaded)
    training.fit(model, data, 4)
    return training.as_bytes(model.get_weights()) == training.as_bytes(loaded)


def test_each_fit_begins_with_the_first_ranks_weights(rank_pool):
    assert rank_pool(2).run(loaded_on_one_rank_worker) == [True, True]


class Moving(keras.layers.Layer):
    """Keeps state of its own, as a normalization does."""

    def __init__(self, dtype_of_state="float32", aggregation="none"):
        super().__init__()
        self.mean = self.add_weight(
            shape=(6,),
            initializer="zeros",
            trainable=False,
            name="moving",
            dtype=dtype_of_state,
            aggregation=aggregation,
        )

    def call(self, x, training=False):
        if training:
            mean = keras.ops.mean(x, 0)
            if self.mean.dtype == "int32":
                mean = keras.ops.cast(1000 * mean, "int32")
                self.mean.assign(self.mean + mean)
            else:
                self.mean.assign(0.5 * self.mean + 0.5 * mean)
        return x - keras.ops.cast(self.mean, x.dtype)


def fit_with_state(layer, local=False):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((6,)), layer, keras.layers.Dense(1)])
    optimizer = ring.DistributedOptimizer(keras.optimizers.SGD(0.01))
    model.compile(optimizer, "mse", jit_compile=False)  # On a GPU no integer state.
    start = ring.callbacks.BroadcastGlobalVariables(
        local_variables=[layer.mean] if local else ()
    )
    x, y = training.arrays()
    mine = ring.data.shard((x[:32], y[:32]))
    model.fit(
        *mine,
        batch_size=4,
        epochs=2,
        verbose=0,
        shuffle=False,
        callbacks=[start, ring.callbacks.MetricAverage()],
    )
    return layer.mean.numpy(), training.as_bytes(model.get_weights())


def layer_state_worker():
    x, _ = training.arrays()
    with Warnings() as warnings:
        averaged, weights = fit_with_state(Moving())
    taken, _ = fit_with_state(Moving(aggregation="only_first_replica"))
    own, _ = fit_with_state(Moving(), local=True)
    with pytest.raises(ring.RankMismatchError) as caught:
        fit_with_state(Moving("int32"))
    expected = np.zeros(6)
    for batch in np.split(x[:32], 4):
        expected = 0.5 * expected + 0.5 * batch.mean(0)
    for batch in np.split(x[:32], 4):
        expected = 0.5 * expected + 0.5 * batch.mean(0)
    return {
        "weights": weights,
        "difference": float(np.abs(averaged - expected).max()),
        "taken": taken.tobytes(),
        "own": own.tobytes(),
        "error": str(caught.value),
        "warnings": [text for text in warnings.texts if "moving" in text],
    }


def test_a_layers_own_state_is_one_on_all_ranks(rank_pool):
    first, second = rank_pool(2).run(layer_state_worker)

    assert first["weights"] == second["weights"]
    assert first["difference"] < 1e-6, "the mean of means is that of one process"
    assert first["taken"] == second["taken"]
    assert first["own"] != second["own"]
    assert first["error"] == second["error"]
    assert "moving' (int32, aggregation='none')" in first["error"]
    assert "only_first_replica" in first["error"]
    (text,) = first["warnings"]
    assert "aggregation='mean'" in text
    assert second["warnings"] == []


def stateful_worker():
    """The states of a recurrent layer belong to the rank's own samples."""
    keras.utils.set_random_seed(1)
    layer = keras.layers.SimpleRNN(2, stateful=True)
    model = keras.Sequential([keras.Input((3, 2), batch_size=4), layer])
    model.compile(ring.DistributedOptimizer("sgd"), "mse")
    x = np.random.default_rng(ring.rank()).normal(size=(8, 3, 2))
    model.fit(x, np.ones((8, 2)), batch_size=4, verbose=0, callbacks=ours())
    return np.asarray(layer.states[0]).tobytes()


def test_states_of_samples_stay_on_their_rank(rank_pool):
    first, second = rank_pool(2).run(stateful_worker)

    assert first != second


def lone_callback_worker(make):
    """Some callbacks are on the first rank only; of the last fit, none."""
    model = training.distributed_model(1)
    data = ring.data.shard(training.dataset(16))
    mine = [make()] if ring.rank() == 0 else []
    with Warnings() as warnings:
        try:
            training.fit(model, data, 4, epochs=6, callbacks=mine)
        except ring.RankMismatchError as error:
            return warnings.texts, str(error)
    return warnings.texts, None


def falls_at_once():
    return keras.callbacks.ReduceLROnPlateau(monitor="loss", patience=1, min_delta=9)


def falls_on_root():
    return ring.callbacks.RootOnly(falls_at_once())


def stops():
    return keras.callbacks.EarlyStopping(monitor="loss", patience=9)


@pytest.mark.parametrize(
    ("make", "said", "raised"),
    variants(
        [(falls_at_once, "ReduceLROnPlateau", True)],
        [
            (falls_on_root, "ReduceLROnPlateau", True),
            (stops, "EarlyStopping", False),
            (keras.callbacks.LambdaCallback, None, False),
            (keras.callbacks.TerminateOnNaN, None, False),
        ],
    ),
)
def test_a_callback_of_one_rank_that_changes_training_is_named(
    rank_pool, make, said, raised
):
    results = rank_pool(2).run(lone_callback_worker, args=(make,))

    for rank, (texts, message) in enumerate(results):
        told = [text for text in texts if "[RK340]" in text]
        assert len(told) == (1 if said and rank == 0 else 0)
        assert all(f"callback {said} is on ranks [0] only" in text for text in told)
        assert (message is not None) == raised
        if message is not None:  # After the epoch in which the rate fell.
            assert "[RK341] fit(): before epoch 3 the learning rates" in message
            assert "rank 0 has 0.01, rank 1 has 0.1" in message


class Rounds(keras.callbacks.Callback):
    """Changes a weight as another order of additions would, on one rank."""

    def on_train_batch_end(self, batch, logs=None):
        if batch == 0:
            kernel = self.model.trainable_variables[0]
            kernel.assign(kernel * (1 + 2.0**-22))


def rounding_worker():
    """The optimizer's averages follow weights that have rounded differently."""
    model = training.build(1)
    optimizer = keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5)
    model.compile(ring.DistributedOptimizer(optimizer), "mse")
    callbacks = [*ours(), *([Rounds()] if ring.rank() == 1 else [])]
    with Warnings() as warnings:
        training.fit(
            model, ring.data.shard(training.dataset(32)), 8, callbacks=callbacks
        )
    state = [variable.numpy() for variable in model.optimizer.variables]
    return warnings.texts, training.as_bytes([*model.get_weights(), *state])


def test_averages_of_weights_that_rounded_differently_are_one(rank_pool):
    (texts, first), (_, second) = rank_pool(2).run(rounding_worker)

    assert any("[RK328]" in text and "by rounding" in text for text in texts), texts
    assert first == second
