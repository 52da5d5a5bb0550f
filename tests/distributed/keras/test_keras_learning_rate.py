"""Learning rates: callbacks and schedules."""

from __future__ import annotations

import contextlib
import io

import keras
import numpy as np
import pytest
from support import training
from support.features.directory import common_directory

import ring_keras as ring


class Rates(keras.callbacks.Callback):
    """Learning rates, read after every execution."""

    def __init__(self):
        super().__init__()
        self.rates = []

    def on_train_batch_end(self, batch, logs=None):
        self.rates.append(float(self.model.optimizer.learning_rate.numpy()))


class RateLog(keras.Model):
    """Adds up the rate that each step ran with: seen from inside the graph."""

    def train_step(self, data):
        result = super().train_step(data)
        self.total.assign_add(self.optimizer.learning_rate)
        return result


def warmup_worker(steps_per_execution):
    model = training.build(1, RateLog)
    model.total = keras.Variable(0.0, trainable=False)
    training.compile_model(
        model,
        ring.DistributedOptimizer(keras.optimizers.SGD(7.0)),
        steps_per_execution=steps_per_execution,
    )
    rates = Rates()
    warmup = ring.callbacks.LearningRateWarmup(0.1, warmup_steps=4)
    decay = ring.callbacks.LearningRateSchedule(
        0.1, lambda epoch: 0.5**epoch, start_epoch=1, end_epoch=3
    )
    history = training.fit(
        model,
        ring.data.shard(training.dataset(6 * 2 * ring.size())),
        2,
        epochs=4,
        callbacks=[
            warmup,
            ring.callbacks.BroadcastGlobalVariables(),
            decay,
            rates,
        ],
    )
    return rates.rates, history["learning_rate"], float(model.total.numpy())


@pytest.mark.parametrize("steps_per_execution", [1, 3])
def test_learning_rates(rank_pool, steps_per_execution):
    ramp = [0.1, 0.125, 0.15, 0.175, 0.2, 0.2]
    expected = ramp + [0.1] * 6 + [0.05] * 6 + [0.05] * 6

    results = rank_pool(2).run(warmup_worker, args=(steps_per_execution,))

    for rates, by_epoch, total in results:
        every = expected[steps_per_execution - 1 :: steps_per_execution]
        np.testing.assert_allclose(rates, every, rtol=1e-6)
        np.testing.assert_allclose(by_epoch, [0.2, 0.1, 0.05, 0.05], rtol=1e-6)
        np.testing.assert_allclose(total, sum(expected), rtol=1e-5)


class FailsOnce(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        raise KeyError("a callback failed")


def warmup_after_failure_worker():
    """A table of rates, left by a fit that failed, is no longer looked at."""
    warmup = ring.callbacks.LearningRateWarmup(0.1, warmup_steps=4, scale=2.0)
    model = training.build(1)
    for steps_per_execution, failure in ((3, [FailsOnce()]), (1, [])):
        rates = Rates()
        training.compile_model(
            model,
            keras.optimizers.SGD(7.0),
            steps_per_execution=steps_per_execution,
        )
        try:
            training.fit(
                model, training.dataset(24), 4, callbacks=[warmup, *failure, rates]
            )
        except KeyError:
            assert failure
    return rates.rates


def test_rates_after_a_failed_fit(rank_pool):
    rates = rank_pool(1).run(warmup_after_failure_worker)[0]

    np.testing.assert_allclose(rates, [0.1, 0.125, 0.15, 0.175, 0.2, 0.2], rtol=1e-6)


def schedule_worker():
    rate = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    model = training.build(1)
    optimizer = ring.DistributedOptimizer(keras.optimizers.SGD(rate))
    training.compile_model(model, optimizer)
    with pytest.raises(ValueError, match="follows a LearningRateSchedule"):
        training.fit(
            model,
            training.dataset(8),
            4,
            callbacks=[ring.callbacks.LearningRateWarmup(0.1, 5)],
        )


def test_a_rate_that_follows_a_schedule_is_refused(rank_pool):
    rank_pool(1).run(schedule_worker)


def said_worker(verbose):
    """What is printed, and when."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        training.fit(
            training.distributed_model(1),
            ring.data.shard(training.dataset(4 * 4 * ring.size())),
            4,
            epochs=3,
            callbacks=[
                ring.callbacks.LearningRateWarmup(
                    0.1, warmup_epochs=2, verbose=verbose
                ),
                ring.callbacks.BroadcastGlobalVariables(),
            ],
        )
    return printed.getvalue()


def test_the_end_of_the_ramp_is_said_once(rank_pool):
    first, second = rank_pool(2).run(said_worker, args=(1,))

    assert first == "Epoch 2: the learning rate has warmed up to 0.1875.\n"
    assert second == ""
    assert rank_pool(2).run(said_worker, args=(0,)) == ["", ""]


def saved_schedule_worker():
    """A schedule goes along with its model, and its step with the optimizer."""
    decay = keras.optimizers.schedules.PiecewiseConstantDecay([6], [0.1, 0.01])
    model = training.build(1)
    rate = ring.schedules.Warmup(decay, 4)
    training.compile_model(model, ring.DistributedOptimizer(keras.optimizers.SGD(rate)))
    data = ring.data.shard(training.dataset(4 * 3 * ring.size()))
    start = ring.callbacks.BroadcastGlobalVariables
    training.fit(model, data, 4, callbacks=[start()])
    with common_directory() as directory:
        path = directory / f"{ring.rank()}.keras"
        model.save(path)
        loaded = keras.models.load_model(path)
    found = loaded.optimizer.learning_rate
    training.fit(loaded, data, 4, callbacks=[start()])
    return (
        [float(rate(step)) for step in (0, 2, 4, 6, 7)],
        float(found),
        float(loaded.optimizer.learning_rate),
    )


def test_a_schedule_is_saved_with_its_model(rank_pool):
    for rates, found, later in rank_pool(2).run(saved_schedule_worker):
        np.testing.assert_allclose(rates, [0.1, 0.15, 0.2, 0.2, 0.02], rtol=1e-6)
        np.testing.assert_allclose([found, later], [0.175, 0.2], rtol=1e-6)
