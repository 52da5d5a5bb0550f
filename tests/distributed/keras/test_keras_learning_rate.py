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


@pytest.mark.parametrize(
    "steps_per_execution", [1, pytest.param(3, marks=pytest.mark.slow)]
)
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_schedule_is_saved_with_its_model(rank_pool):
    for rates, found, later in rank_pool(2).run(saved_schedule_worker):
        np.testing.assert_allclose(rates, [0.1, 0.15, 0.2, 0.2, 0.02], rtol=1e-6)
        np.testing.assert_allclose([found, later], [0.175, 0.2], rtol=1e-6)


def accumulating_worker(passes, by_us, per_execution):
    """Rates at the ends of epochs, with updates in few of the steps."""
    sgd = keras.optimizers.SGD(
        7.0, gradient_accumulation_steps=None if by_us else passes
    )
    model = training.build(1)
    training.compile_model(
        model,
        ring.DistributedOptimizer(sgd, backward_passes_per_step=passes)
        if by_us
        else ring.DistributedOptimizer(sgd),
        steps_per_execution=per_execution,
    )
    rates = Rates()
    history = training.fit(
        model,
        ring.data.shard(training.dataset(6 * 4 * ring.size())),
        4,
        epochs=5,
        callbacks=[
            ring.callbacks.LearningRateWarmup(0.1, warmup_epochs=2),
            ring.callbacks.LearningRateSchedule(0.1, 0.1, start_epoch=3),
            rates,
        ],
    )
    return history["learning_rate"], rates.rates


@pytest.mark.parametrize(
    ("passes", "by_us", "per_execution"),
    [
        (4, True, 1),
        pytest.param(4, False, 3, marks=pytest.mark.slow),
        pytest.param(4, False, 1, marks=pytest.mark.slow),
    ],
)
def test_epochs_are_epochs_with_accumulation(rank_pool, passes, by_us, per_execution):
    results = rank_pool(2).run(accumulating_worker, args=(passes, by_us, per_execution))

    ramp = [0.1 + 0.1 * step / 12 for step in range(12)] + [0.2] * 6 + [0.02] * 12
    for by_epoch, rates in results:
        np.testing.assert_allclose(by_epoch, ramp[5::6], rtol=1e-6)
        np.testing.assert_allclose(rates, ramp[per_execution - 1 :: per_execution])


def updates_worker():
    """The rates of updates, of which each takes three steps."""
    model = training.build(1)
    optimizer = keras.optimizers.SGD(7.0, gradient_accumulation_steps=3)
    training.compile_model(model, ring.DistributedOptimizer(optimizer))
    rates = Rates()
    warmup = ring.callbacks.LearningRateWarmup(0.1, warmup_steps=4)
    data = ring.data.shard(training.dataset(7 * 4 * ring.size()))
    for _ in range(2):
        training.fit(model, data, 4, callbacks=[warmup, rates])
    return rates.rates


def test_a_ramp_in_steps_counts_updates(rank_pool):
    ramp = [0.1] * 3 + [0.125] * 3 + [0.15] * 3 + [0.175] * 3 + [0.2] * 2

    for rates in rank_pool(2).run(updates_worker):
        np.testing.assert_allclose(rates, ramp, rtol=1e-6)


def initial_epoch_worker(steps, per_execution, length):
    """The rates of epochs that an optimizer begins with, fresh or of other ranks.

    Args:
        steps: That the optimizer has taken before.
        per_execution: Steps.
        length: How many steps the callbacks are told; None: `fit` knows it.
    """
    model = training.build(1)
    optimizer = ring.DistributedOptimizer(keras.optimizers.SGD(0.1))
    training.compile_model(model, optimizer, steps_per_execution=per_execution)
    model.optimizer.build(model.trainable_variables)
    model.optimizer.iterations.assign(steps)
    data = ring.data.shard(training.dataset(3 * 4 * ring.size()))
    if length:
        data = data.filter(lambda *_: True)
    callbacks = [
        ring.callbacks.LearningRateWarmup(0.1, warmup_epochs=2, steps_per_epoch=length),
        ring.callbacks.LearningRateSchedule(
            0.1, lambda epoch: 0.5**epoch, start_epoch=2, steps_per_epoch=length
        ),
    ]
    arguments = {"initial_epoch": 4, "epochs": 7, "callbacks": callbacks}
    history = training.fit(model, data, 4, **arguments)
    return history["learning_rate"]


# The last two are more than as many epochs have here, as on fewer ranks.
@pytest.mark.parametrize("steps", [0, 4 * 3, 4 * 3 + 2, 4 * 30])
def test_epochs_begin_with_the_initial_one(rank_pool, steps):
    for rates in rank_pool(2).run(initial_epoch_worker, args=(steps, 1, None)):
        np.testing.assert_allclose(rates, [0.2 / 16, 0.2 / 32, 0.2 / 64], rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("length", [None, 3])
def test_epochs_are_as_long_as_they_are(rank_pool, length):
    """The last execution of each is made for more steps than it has."""
    for rates in rank_pool(2).run(initial_epoch_worker, args=(0, 2, length)):
        np.testing.assert_allclose(rates, [0.2 / 16, 0.2 / 32, 0.2 / 64], rtol=1e-6)


class RestoresSteps(keras.callbacks.Callback):
    """As a callback that reads a file does, on one rank."""

    def on_train_begin(self, logs=None):
        self.model.optimizer.build(self.model.trainable_variables)
        self.model.optimizer.iterations.assign(2)


def restored_table_worker():
    """The rates that the steps of the first execution ran with."""
    model = training.build(1, RateLog)
    model.total = keras.Variable(0.0, trainable=False)
    optimizer = ring.DistributedOptimizer(keras.optimizers.SGD(7.0))
    training.compile_model(model, optimizer, steps_per_execution=2)
    training.fit(
        model,
        ring.data.shard(training.dataset(2 * 4 * ring.size())),
        4,
        callbacks=[
            *([RestoresSteps()] if ring.rank() == 0 else []),
            ring.callbacks.LearningRateWarmup(0.1, warmup_steps=10),
        ],
    )
    return float(model.total.numpy())


def test_ranks_that_are_given_a_step_take_its_rate(rank_pool):
    totals = rank_pool(2).run(restored_table_worker)

    np.testing.assert_allclose(totals, [0.12 + 0.13] * 2, rtol=1e-5)


def set_of_one_worker():
    """The job has two ranks, each of which trains a model of its own."""
    sets = [ring.add_process_set([rank]) for rank in range(2)]
    rates = []
    for rule in (
        ring.callbacks.LearningRateWarmup(0.1, warmup_steps=2),
        ring.callbacks.LearningRateSchedule(0.1, 1.0),
    ):
        optimizer = ring.DistributedOptimizer(
            keras.optimizers.SGD(0.1), process_set=sets[ring.rank()]
        )
        model = training.compile_model(training.build(1), optimizer)
        training.fit(model, training.dataset(16), 4, callbacks=[rule])
        rates.append(float(optimizer.learning_rate.numpy()))
    for process_set in sets:
        ring.remove_process_set(process_set)
    return rates


@pytest.mark.slow
def test_rates_are_for_the_ranks_that_train_the_model(rank_pool):
    for rates in rank_pool(2).run(set_of_one_worker, timeout_s=60):
        assert rates == pytest.approx([0.1, 0.1])
