"""A `fit` leaves nothing to the next one, however it has ended."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import training

import ring_keras as ring


def ours():
    return [ring.callbacks.BroadcastGlobalVariables(), ring.callbacks.MetricAverage()]


def part(steps, **kwargs):
    """This rank's examples for so many steps, batched."""
    data = ring.data.shard(training.dataset(4 * steps * ring.size()), seed=1, **kwargs)
    return data.batch(4)


class Fails(keras.callbacks.Callback):
    """Ends `fit` with an error."""

    def __init__(self, batch):
        super().__init__()
        self.batch = batch

    def on_train_batch_begin(self, batch, logs=None):
        if batch == self.batch:
            raise ArithmeticError


def failing(model, data, batch, callbacks, **kwargs):
    with pytest.raises(ArithmeticError):
        model.fit(data, verbose=0, callbacks=[*callbacks, Fails(batch)], **kwargs)


def steps_taken(model, data, callbacks, **kwargs):
    before = int(model.optimizer.iterations)
    model.fit(data, verbose=0, callbacks=callbacks, **kwargs)
    return int(model.optimizer.iterations) - before


def resumed_worker():
    """Fits after one that went on in the middle of the second epoch."""
    model = training.distributed_model(1)
    model.fit(part(6), verbose=0, callbacks=ours())
    data = part(4)
    # Of the two steps that are done already one is never read.
    failing(model, data, 1, [ring.data.Resume(), *ours()], epochs=3)
    rest = steps_taken(model, data, [ring.data.Resume(), *ours()], epochs=3)
    after = steps_taken(model, data, ours(), epochs=1)
    alone = steps_taken(model, data, [], epochs=1)
    return rest, after, alone


def test_a_fit_after_a_resumed_one_takes_all_its_steps(rank_pool):
    assert rank_pool(2).run(resumed_worker, timeout_s=120) == [(6, 4, 4)] * 2


def rates_worker():
    """A table of rates for two steps at a time is left by a fit that failed."""
    model = training.build(1)
    training.compile_model(
        model,
        ring.DistributedOptimizer(keras.optimizers.SGD(0.5)),
        steps_per_execution=2,
    )
    warmup = ring.callbacks.LearningRateWarmup(0.1, warmup_steps=100)
    data = part(8)
    failing(model, data, 4, [warmup, *ours()])
    other = training.distributed_model(2)
    other.fit(data, verbose=0, callbacks=[warmup])
    model.optimizer.learning_rate = 0.25
    model.fit(data, verbose=0)
    training.compile_model(model, model.optimizer)  # Traced again.
    model.fit(data, verbose=0, callbacks=ours())
    return float(model.optimizer.learning_rate)


def test_rates_of_a_fit_that_failed_are_no_others(rank_pool):
    assert rank_pool(2).run(rates_worker, timeout_s=120) == [0.25, 0.25]


class TrainsByItself(keras.callbacks.Callback):
    """Takes a step between those of `fit`."""

    def on_train_batch_end(self, batch, logs=None):
        x, y = training.arrays()
        if batch == 1:
            self.model.train_on_batch(x[:4], y[:4])


def step_between_worker():
    model = training.build(1)
    training.compile_model(
        model,
        ring.DistributedOptimizer(keras.optimizers.SGD(0.5)),
        steps_per_execution=2,
    )
    warmup = ring.callbacks.LearningRateWarmup(0.1, warmup_steps=100)
    model.fit(part(6), verbose=0, callbacks=[warmup, *ours(), TrainsByItself()])
    steps = int(model.optimizer.iterations)
    return steps, float(model.optimizer.learning_rate), warmup.learning_rate_at(6)


def test_a_step_that_a_callback_takes_leaves_the_rates(rank_pool):
    for steps, rate, expected in rank_pool(2).run(step_between_worker, timeout_s=120):
        assert steps == 7
        assert rate == pytest.approx(expected)


def folds_worker():
    """Models of several folds, each evaluated in the middle of its `fit`."""
    x, y = training.arrays()
    scores = []
    for fold in range(3):
        chosen = np.arange(96) % 3 != fold
        model = training.distributed_model(fold)

        class Evaluates(keras.callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None, held=~chosen):
                if ring.rank() == 0:
                    self.model.evaluate(x[:96][held], y[:96][held], verbose=0)

        data = ring.data.shard((x[:96][chosen], y[:96][chosen]), seed=fold)
        history = model.fit(
            *data, epochs=2, batch_size=8, verbose=0, callbacks=[*ours(), Evaluates()]
        )
        scores.append(history.history["loss"])
    return scores


@pytest.mark.slow
def test_folds_follow_each_other(rank_pool):
    first, second = rank_pool(2).run(folds_worker, timeout_s=120)

    assert first == second


def turns_worker():
    """Two models trained in turns, batch by batch, beside a `fit` of each."""
    models = [training.distributed_model(seed) for seed in (1, 2)]
    x, y = (array[ring.rank() :: 2][:16] for array in training.arrays())
    for _ in range(2):
        for model in models:
            model.fit(x, y, batch_size=8, verbose=0, callbacks=ours())
        for start in (0, 4, 8):
            for model in models:
                model.train_on_batch(x[start : start + 4], y[start : start + 4])
    return [training.as_bytes(model.get_weights()) for model in models]


@pytest.mark.slow
def test_models_are_trained_in_turns(rank_pool):
    first, second = rank_pool(2).run(turns_worker, timeout_s=120)

    assert first == second


class Noise(keras.layers.Layer):
    """Takes its random numbers from what Keras keeps for each thread."""

    def call(self, x):
        return x + keras.random.normal(tf.shape(x), stddev=0.0)


def sizes_worker():
    model = keras.Sequential([keras.Input((6,)), Noise(), keras.layers.Dense(1)])
    model.compile(ring.DistributedOptimizer("sgd"), "mse")
    x, y = training.arrays()
    model.fit(x[:8], y[:8], verbose=0, callbacks=ours())
    for size in (4, 4, 3, 3, 4):
        model.train_on_batch(x[:size], y[:size])
    return int(model.optimizer.iterations)


def test_batches_may_change_their_size(rank_pool):
    assert rank_pool(2).run(sizes_worker) == [6, 6]


def uneven_worker(make_data, kwargs):
    model = training.distributed_model(1)
    x, y = training.arrays()
    with pytest.raises(ring.RankMismatchError) as caught:
        model.fit(
            make_data(x, y, 2 + ring.rank()),
            verbose=0,
            callbacks=[ring.callbacks.MetricAverage()],
            **kwargs,
        )
    return str(caught.value)


def generator(x, y, steps):
    for start in range(steps):
        yield x[start : start + 4], y[start : start + 4]


def of_unknown_length(x, y, steps):
    data = tf.data.Dataset.from_tensor_slices((x, y)).take(4 * steps)
    return data.filter(lambda *_: True).batch(4)


@pytest.mark.parametrize(
    ("make_data", "kwargs"),
    [
        pytest.param(generator, {"steps_per_epoch": 3}, marks=pytest.mark.slow),
        (of_unknown_length, {"steps_per_epoch": 4}),
    ],
)
def test_data_that_end_sooner_are_found_with_any_callback(rank_pool, make_data, kwargs):
    first, second = rank_pool(2).run(
        uneven_worker, args=(make_data, kwargs), timeout_s=150
    )

    assert first == second
    assert "after 2 steps of the epoch ranks [0] have run out of data" in first


def other_callbacks_worker():
    model = training.distributed_model(1)
    chosen = [] if ring.rank() else [ring.callbacks.RingMetrics()]
    with pytest.raises(ring.RankMismatchError) as caught:
        model.fit(part(2), verbose=0, callbacks=chosen)
    return str(caught.value)


def test_callbacks_of_some_ranks_only_are_named(rank_pool):
    first, second = rank_pool(2).run(other_callbacks_worker, timeout_s=150)

    assert first == second
    assert "'RingMetrics'], rank 1 has ['Broadcast" in first
    assert "callbacks of ring_keras" in first
