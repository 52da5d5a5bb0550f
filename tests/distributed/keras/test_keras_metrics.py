"""Metrics are those of all ranks' data together."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf
from support import training

import ring_keras as ring

LIMIT = 1e-6


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
    model = training.distributed_model(1)
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


class Fails(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        raise KeyError("a callback failed")


def failed_fit_worker(in_step):
    """One rank evaluates alone after a fit that failed on all of them."""
    model = training.distributed_model(1)
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
