"""Callbacks: one start, one set of metrics, one learning rate."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import training

import ring_keras as ring

LIMIT = 1e-6


def distributed_model(seed, optimizer="sgd", **compile_kwargs):
    model = training.build(seed)
    return training.compile_model(
        model,
        ring.DistributedOptimizer(training.OPTIMIZERS[optimizer]()),
        **compile_kwargs,
    )


class Recorder(keras.callbacks.Callback):
    """What a callback sees at the place in the list where it stands."""

    def __init__(self):
        super().__init__()
        self.epoch_logs = []
        self.test_logs = []

    def on_epoch_end(self, epoch, logs=None):
        self.epoch_logs.append(dict(logs))

    def on_test_end(self, logs=None):
        self.test_logs.append(dict(logs))


def metrics_worker(average_first):
    """Uneven training and validation data; the model does not learn."""
    size, rank = ring.size(), ring.rank()
    data = training.dataset(8 * training.BATCH * size - 1)
    validation = training.dataset(10 * size + 1)
    model = training.build(1)
    training.compile_model(model, ring.DistributedOptimizer(keras.optimizers.SGD(0.1)))
    before, after = Recorder(), Recorder()
    average = ring.callbacks.MetricAverage()
    broadcast = ring.callbacks.BroadcastGlobalVariables()
    ordered = [average, broadcast] if average_first else [broadcast, average]
    history = training.fit(
        model,
        ring.data.shard(data, remainder="keep"),
        training.BATCH,
        epochs=2,
        validation_data=ring.data.shard(validation, remainder="keep").batch(3),
        callbacks=[before, *ordered, after],
    )
    part = ring.data.shard(validation, remainder="keep").batch(3)
    evaluated = model.evaluate(
        part,
        verbose=0,
        return_dict=True,
        callbacks=[ring.callbacks.MetricAverage()],
    )
    # Without the callback no rank is asked: one may evaluate alone.
    local = model.evaluate(part, verbose=0) if rank == 0 else None

    alone = training.build(1)
    training.compile_model(alone, keras.optimizers.SGD(0.1))
    alone_history = training.fit(
        alone,
        data,
        training.BATCH * size,
        epochs=2,
        validation_data=validation.batch(3 * size),
    )
    alone_evaluated = alone.evaluate(
        validation.batch(3 * size), verbose=0, return_dict=True
    )
    return {
        "history": training.history_difference(history, alone_history),
        "evaluated": max(
            abs(evaluated[key] - alone_evaluated[key]) for key in alone_evaluated
        ),
        "logs": [before.epoch_logs, after.epoch_logs, before.test_logs],
        "local_differs": local is None or size == 1 or local[0] != evaluated["loss"],
    }


@pytest.mark.parametrize(("size", "average_first"), [(1, True), (2, False), (3, True)])
def test_metrics_are_those_of_one_process(rank_pool, size, average_first):
    results = rank_pool(size).run(metrics_worker, args=(average_first,))

    for result in results:
        assert result["history"] <= LIMIT
        assert result["evaluated"] <= LIMIT
        before, after, test = result["logs"]
        assert before == after, "the place in the list matters"
        assert len(test) == 2
        assert result["local_differs"]
    assert all(result["logs"] == results[0]["logs"] for result in results)


class OtherKeys(keras.Model):
    """Its train_step returns what is no metric of the model."""

    def train_step(self, data):
        super().train_step(data)
        return {"rank_number": keras.ops.convert_to_tensor(float(ring.rank()))}


def other_keys_worker():
    model = training.build(1, OtherKeys)
    training.compile_model(model, ring.DistributedOptimizer("sgd"))
    history = training.fit(
        model,
        training.dataset(8),
        4,
        callbacks=[ring.callbacks.MetricAverage()],
    )
    return history["rank_number"]


def test_logs_that_are_no_metrics_are_averaged(rank_pool):
    assert rank_pool(2).run(other_keys_worker) == [[0.5], [0.5]]


def early_stopping_worker():
    """Each rank's own validation loss would stop it in another epoch."""
    rank = ring.rank()
    x, y = training.arrays()
    model = distributed_model(1)
    stopping = keras.callbacks.EarlyStopping("val_loss", patience=1, min_delta=0.01)
    history = training.fit(
        model,
        ring.data.shard(training.dataset(64)),
        training.BATCH,
        epochs=8,
        # Rank 1's labels are wrong: its own loss only ever grows.
        validation_data=(x[:40], y[:40] if rank == 0 else 1 - y[:40]),
        callbacks=[
            stopping,
            ring.callbacks.BroadcastGlobalVariables(),
            ring.callbacks.MetricAverage(),
        ],
    )
    return history["val_loss"]


def test_early_stopping_decides_alike(rank_pool):
    first, second = rank_pool(2).run(early_stopping_worker)

    assert first == second
    assert len(first) < 8


class FirstWeights(keras.callbacks.Callback):
    """The weights after step 1, with a rate of 0: those that it ran with."""

    def __init__(self):
        super().__init__()
        self.weights = None

    def on_train_batch_end(self, batch, logs=None):
        if self.weights is None:
            self.weights = training.as_bytes(self.model.get_weights())


def first_step_worker(root):
    rank = ring.rank()
    model = training.build(1 + rank)  # Not built: no variables yet.
    optimizer = keras.optimizers.SGD(0.0 if rank == root else 9.0, momentum=0.9)
    training.compile_model(model, ring.DistributedOptimizer(optimizer))
    first = FirstWeights()
    training.fit(
        model,
        ring.data.shard(training.dataset(32)),
        4,
        callbacks=[first, ring.callbacks.BroadcastGlobalVariables(root_rank=root)],
    )
    expected = training.build(1 + root)
    expected.build((None, 6))
    return first.weights == training.as_bytes(expected.get_weights())


def test_the_first_step_runs_with_the_roots_weights(rank_pool):
    assert rank_pool(2).run(first_step_worker, args=(1,)) == [True, True]


class TwoOptimizers(keras.Model):
    """Like a GAN: no `call`, optimizers of its own, made by compile()."""

    def __init__(self, seed):
        super().__init__()
        keras.utils.set_random_seed(seed)
        self.first = keras.layers.Dense(3)
        self.second = keras.layers.Dense(1)

    def compile(self, rate):
        super().compile()
        self.first_optimizer = keras.optimizers.Adam(rate)
        self.second_optimizer = keras.optimizers.SGD(rate)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape(persistent=True) as tape:
            loss = tf.reduce_mean(tf.square(self.second(self.first(x)) - y))
        for layer, optimizer in (
            (self.first, self.first_optimizer),
            (self.second, self.second_optimizer),
        ):
            variables = layer.trainable_variables
            optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


class OneTape(TwoOptimizers):
    """Averages the gradients of one of its layers itself."""

    distributed = True
    clips = False

    def train_step(self, data):
        x, y = data
        tape = tf.GradientTape()
        if self.distributed:
            tape = ring.DistributedGradientTape(tape)
        with tape, tf.GradientTape() as plain:
            loss = tf.reduce_mean(tf.square(self.second(self.first(x)) - y))
        first = tape.gradient(loss, self.first.trainable_variables)
        second = plain.gradient(loss, self.second.trainable_variables)
        if self.clips:
            first = [tf.clip_by_value(gradient, -0.1, 0.1) for gradient in first]
        self.first_optimizer.apply(first, self.first.trainable_variables)
        self.second_optimizer.apply(second, self.second.trainable_variables)
        return {"loss": loss}


class OneTapeClips(OneTape):
    """Changes what the tape returned, which is averaged once more."""

    clips = True


def two_optimizers_worker(cls):
    size, rank = ring.size(), ring.rank()
    data = training.dataset(training.steps_of(6, size))
    model = cls(1 + rank)
    model.compile(0.01)
    training.fit(
        model,
        ring.data.shard(data, remainder="keep"),
        training.BATCH,
        callbacks=[ring.callbacks.BroadcastGlobalVariables()],
    )
    alone = cls(1)
    alone.distributed = False
    alone.compile(0.01)
    training.fit(alone, data, training.BATCH * size)
    return training.largest_difference(model.get_weights(), alone.get_weights())


@pytest.mark.parametrize("cls", [TwoOptimizers, OneTape, OneTapeClips])
def test_a_model_without_call_and_with_two_optimizers(rank_pool, cls):
    results = rank_pool(2).run(two_optimizers_worker, args=(cls,))

    assert max(results) <= LIMIT


class Fails(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        raise KeyError("a callback failed")


def failed_fit_worker(in_step):
    """One rank evaluates alone after a fit that failed on all of them."""
    model = distributed_model(1)
    average = ring.callbacks.MetricAverage()
    data = ring.data.shard(training.dataset(8 * ring.size())).batch(4)
    if in_step:  # The second one.
        data = data.enumerate().map(
            lambda n, batch: (batch[0][: 4 - tf.cast(n, tf.int32)], batch[1])
        )
    with pytest.raises((KeyError, tf.errors.InvalidArgumentError)):
        model.fit(data, epochs=2, verbose=0, callbacks=[average, Fails()])
    local = ring.data.shard(training.dataset(8 * ring.size())).batch(4)
    if ring.rank() == 0:
        model.evaluate(local, verbose=0)
    # Whoever trains again reports together again.
    model.fit(local, verbose=0, callbacks=[average])
    return model.history.history["loss"]


@pytest.mark.parametrize("in_step", [True, False])
def test_one_rank_evaluates_alone_after_a_failed_fit(rank_pool, in_step):
    first, second = rank_pool(2).run(failed_fit_worker, args=(in_step,))

    assert first == second


class Assigns(keras.Model):
    """Never passes its gradients to an optimizer."""

    def train_step(self, data):
        for variable in self.trainable_variables:
            variable.assign_sub(0.1 * variable)
        return {"nothing": keras.ops.zeros(())}


def guard_worker():
    """Three ways to train alone, and the message each gets."""
    messages = []
    for callback in (ring.callbacks.MetricAverage(), None):
        model = training.build(1, None if callback else Assigns)
        training.compile_model(model, keras.optimizers.SGD(0.1))
        with pytest.raises(ring.RingKerasError) as caught:
            training.fit(
                model,
                training.dataset(8),
                4,
                callbacks=[callback or ring.callbacks.BroadcastGlobalVariables()],
            )
        messages.append(str(caught.value))
    # A loaded model's optimizer is an ordinary one: BroadcastGlobalVariables
    # makes it a distributed one.
    model = distributed_model(1)
    model.build((None, 6))
    loaded = keras.models.clone_model(model)
    loaded.compile_from_config(model.get_compile_config())
    training.fit(
        loaded,
        ring.data.shard(training.dataset(8)),
        4,
        callbacks=[ring.callbacks.BroadcastGlobalVariables()],
    )
    return messages, training.as_bytes(loaded.get_weights())


def test_a_step_that_communicates_nothing_raises(rank_pool):
    results = rank_pool(2).run(guard_worker)

    for messages, _ in results:
        for message in messages:
            assert "reduced no gradients" in message
            assert "DistributedOptimizer" in message
    assert results[0][1] == results[1][1]


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


class RestoresEpoch(keras.callbacks.Callback):
    """As BackupAndRestore does, on the one rank that has the file."""

    def on_train_begin(self, logs=None):
        if ring.rank() == 0:
            self.model._initial_epoch = 2


def initial_epoch_worker(broadcast_last):
    model = distributed_model(1)
    broadcast = ring.callbacks.BroadcastGlobalVariables()
    ordered = [RestoresEpoch(), broadcast]
    epochs = Recorder()
    callbacks = ordered if broadcast_last else ordered[::-1]
    try:
        training.fit(
            model,
            ring.data.shard(training.dataset(8)),
            4,
            epochs=5,
            callbacks=[*callbacks, epochs],
        )
    except ring.RankMismatchError as error:
        return str(error)
    return len(epochs.epoch_logs)


def test_all_ranks_begin_with_the_roots_epoch(rank_pool):
    assert rank_pool(2).run(initial_epoch_worker, args=(True,)) == [3, 3]

    messages = rank_pool(2).run(initial_epoch_worker, args=(False,))
    assert messages[0] == messages[1]
    assert "rank 0 has 2, rank 1 has 0" in messages[0]


def uneven_steps_worker():
    model = distributed_model(1)
    with pytest.raises(ring.RankMismatchError) as caught:
        training.fit(
            model,
            training.dataset(8 + 4 * ring.rank()),
            4,
            callbacks=[ring.callbacks.BroadcastGlobalVariables()],
        )
    return str(caught.value)


def test_different_numbers_of_steps_are_refused(rank_pool):
    for message in rank_pool(2).run(uneven_steps_worker):
        assert "rank 0 has 2, rank 1 has 3" in message
        assert "ring_keras.data.shard()" in message
