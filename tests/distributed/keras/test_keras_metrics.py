"""Metrics are those of all ranks' data together."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import training
from support.variants import variants

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


@pytest.mark.parametrize(
    ("size", "average_first"),
    [
        (2, False),
        pytest.param(1, True, marks=pytest.mark.slow),
        pytest.param(3, True, marks=pytest.mark.slow),
    ],
)
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


class AllMetrics(keras.Model):
    """Its steps are those of Keras's guide to a `train_step` of one's own."""

    def train_step(self, data):
        x, y = data[:2]
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=y_pred)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return self.count(loss, y, y_pred)

    def test_step(self, data):
        x, y = data[:2]
        y_pred = self(x, training=False)
        return self.count(self.compute_loss(y=y, y_pred=y_pred), y, y_pred)

    def count(self, loss, y, y_pred):
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred)
        # One of them is a dict: all that `compile` was given.
        return {metric.name: metric.result() for metric in self.metrics}


def all_metrics_worker():
    size = ring.size()
    data, held = training.dataset(16 * size), training.dataset(6 * size)

    def fitted(optimizer, data, held, batch):
        model = training.build(1, AllMetrics)
        model.compile(optimizer, "mse", metrics=["mae", keras.metrics.AUC(name="auc")])
        options = {"epochs": 2, "validation_data": held.batch(batch)}
        return model, training.fit(model, data, batch, **options)

    optimizer = ring.DistributedOptimizer(keras.optimizers.SGD(0.1))
    _, ours = fitted(optimizer, ring.data.shard(data), ring.data.shard(held), 4)
    model, alone = fitted(keras.optimizers.SGD(0.1), data, held, 4 * size)
    # Each rank has trained it, where kernels of GPUs need not round alike.
    ring.broadcast_variables(model.weights)
    evaluated = ring.evaluate(model, held.batch(4 * size), verbose=0, return_dict=True)
    assert {"loss", "mae", "auc", "val_auc"} <= ours.keys()
    assert training.history_difference(ours, alone) <= LIMIT
    for key, value in evaluated.items():
        assert abs(value - alone[f"val_{key}"][-1]) <= LIMIT


@pytest.mark.slow
def test_a_train_step_may_return_all_metrics(rank_pool):
    rank_pool(2).run(all_metrics_worker)


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


class Aggregated(keras.metrics.Metric):
    """Its result is its one variable, which it sets to the rank's number plus 1."""

    def __init__(self, aggregation, dtype="float32"):
        super().__init__(name=aggregation)
        self.value = self.add_variable((), "zeros", dtype, aggregation, "value")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.value.assign(self.value * 0 + ring.rank() + 1)

    def result(self):
        return self.value


class Constant(Aggregated):
    """The same on all ranks."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.value.assign(7.0)


def aggregation_worker():
    model = training.build(1)
    x, y = training.arrays()

    def evaluate(*metrics):
        # XLA on a GPU takes no integer state.
        model.compile(loss="mse", metrics=list(metrics), jit_compile=False)
        return model.evaluate(
            x[:4],
            y[:4],
            verbose=0,
            return_dict=True,
            callbacks=[ring.callbacks.MetricAverage()],
        )

    results = evaluate(
        Aggregated("sum"),
        Aggregated("mean"),
        Aggregated("only_first_replica"),
        Constant("none"),
    )
    messages = []
    for metric in (Aggregated("none"), Aggregated("mean", "int32")):
        with pytest.raises(ValueError, match="cannot be combined") as caught:
            evaluate(metric)
        messages.append(str(caught.value))
    return {key: float(results[key]) for key in results if key != "loss"}, messages


def test_metrics_say_how_ranks_values_make_one(rank_pool):
    first, second = rank_pool(2).run(aggregation_worker)

    results, messages = first
    assert results == {"sum": 3, "mean": 1.5, "only_first_replica": 1, "none": 7}
    assert results == second[0]
    assert "value' (float32, aggregation='none')" in messages[0]
    assert "value' (int32, aggregation='mean')" in messages[1]


class Range(keras.metrics.Metric):
    """The distance between the lowest and the highest prediction."""

    def __init__(self, name="range"):
        super().__init__(name=name)
        self.lowest = self.add_variable((), keras.initializers.Constant(9.0))
        self.highest = self.add_variable((), keras.initializers.Constant(-9.0))

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.lowest.assign(tf.minimum(self.lowest, tf.reduce_min(y_pred)))
        self.highest.assign(tf.maximum(self.highest, tf.reduce_max(y_pred)))

    def result(self):
        return self.highest - self.lowest

    def merge_ranks(self, states):
        lowest, highest = zip(*states, strict=True)
        self.lowest.assign(min(lowest))
        self.highest.assign(max(highest))


class RangeAndMean(keras.metrics.Metric):
    """Consists of others, of which one merges by itself."""

    def __init__(self):
        super().__init__(name="range_and_mean")
        self.range, self.mean = Range(), keras.metrics.Mean()

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.range.update_state(y_true, y_pred)
        self.mean.update_state(y_pred)

    def result(self):
        return self.range.result() + self.mean.result()


class Median(keras.metrics.Metric):
    """Its state is a list of Python."""

    def __init__(self):
        super().__init__(name="median")
        self.values = []

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.values += y_pred.numpy().ravel().tolist()

    def result(self):
        return float(np.median(self.values)) if self.values else 0.0

    def reset_state(self):
        self.values = []

    def rank_state(self):
        return self.values

    def merge_ranks(self, states):
        self.values = [value for values in states for value in values]


def merging_worker():
    """Uneven data; the model does not learn."""
    size = ring.size()
    data, held = training.dataset(9 * size - 1), training.dataset(7 * size + 1)

    def fitted(optimizer, data, held, batch, **kwargs):
        model = training.build(1)
        metrics = [Range(), RangeAndMean(), Median()]
        model.compile(optimizer, "mse", metrics=metrics, run_eagerly=True)
        held = held.batch(batch)
        kwargs |= {"validation_data": held, "epochs": 2}
        history = training.fit(model, data, batch, **kwargs)
        return history, metrics, model.evaluate(held, return_dict=True, verbose=0)

    part = ring.data.shard(data, remainder="keep")
    held_part = ring.data.shard(held, remainder="keep")
    optimizer = ring.DistributedOptimizer(keras.optimizers.SGD(0.0))
    history, metrics, local = fitted(optimizer, part, held_part, 3)
    alone, *_ = fitted(keras.optimizers.SGD(0.0), data, held, 3 * size)
    assert training.history_difference(history, alone) <= LIMIT
    # Each rank has its own state again.
    assert len(metrics[-1].values) == len(list(held_part))
    return local["range"] == history["val_range"][-1]


@pytest.mark.parametrize(
    "size",
    [
        2,
        1,
        3,
    ],
)
@pytest.mark.slow
def test_metrics_may_merge_the_states_of_ranks_themselves(rank_pool, size):
    is_of_all = rank_pool(size).run(merging_worker)

    # An evaluation without the callback is of a part, with another range.
    assert size == 1 or not all(is_of_all)


class NoState(Median):
    """Cannot say what its state is."""

    def rank_state(self):
        return {"values": np.array(self.values)}[ring.rank()]


def failing_merge_worker():
    model = training.build(1)
    model.compile(loss="mse", metrics=[NoState()], run_eagerly=True)
    x, y = training.arrays()
    average = ring.callbacks.MetricAverage()
    with pytest.raises(ring.RankMismatchError, match="failed on rank 0: KeyError: 0"):
        model.evaluate(x[:4], y[:4], verbose=0, callbacks=[average])


def test_a_metric_that_fails_to_say_its_state_is_an_error_on_all(rank_pool):
    rank_pool(2).run(failing_merge_worker)


class Evaluates(keras.callbacks.Callback):
    """Calls `evaluate` at the end of every epoch, on some ranks."""

    def __init__(self, data, ranks, average):
        super().__init__()
        self.data = data
        self.ranks = ranks
        self.average = average
        self.results = []

    def on_epoch_end(self, epoch, logs=None):
        if ring.rank() in self.ranks:
            callbacks = [ring.callbacks.MetricAverage()] if self.average else []
            result = self.model.evaluate(self.data, verbose=0, callbacks=callbacks)
            self.results.append(result[0])


def evaluate_within_fit_worker(ranks, average):
    """Batch normalization, whose statistics are averaged too; it learns nothing."""
    rank, size = ring.rank(), ring.size()
    data = training.dataset(16 * size)
    part = ring.data.shard(data)
    model = keras.Sequential([keras.layers.BatchNormalization(), training.build(1)])
    training.compile_model(model, ring.DistributedOptimizer(keras.optimizers.SGD(0.0)))
    evaluates = Evaluates(part.batch(4), ranks, average)
    history = training.fit(
        model,
        part,
        4,
        epochs=3,
        validation_data=part.batch(4),
        callbacks=[
            evaluates,
            ring.callbacks.BroadcastGlobalVariables(),
            ring.callbacks.MetricAverage(),
        ],
    )
    local = model.evaluate(part.batch(4), verbose=0)[0] if rank == 0 else None
    whole = model.evaluate(data.batch(4), verbose=0)[0]
    return {
        "history": history,
        "weights": training.as_bytes(model.get_weights()),
        "evaluated": evaluates.results,
        "local": local,
        "whole": whole,
    }


@pytest.mark.parametrize(
    ("ranks", "average"),
    [
        ((0, 1), False),
        ((0, 1), True),
        ((0,), False),
    ],
)
@pytest.mark.slow
def test_evaluate_within_fit_leaves_the_fit_as_it_is(rank_pool, ranks, average):
    results = rank_pool(2).run(evaluate_within_fit_worker, args=(ranks, average))

    first, second = results
    assert first["history"] == second["history"]
    assert first["weights"] == second["weights"], "moving statistics are no longer"
    assert [len(r["evaluated"]) for r in results] == [3 * (n in ranks) for n in (0, 1)]
    last = first["evaluated"][-1]
    # What it reports is of all ranks' data with the callback, and local without.
    assert last == pytest.approx(first["whole" if average else "local"], abs=LIMIT)
    if ranks == (0, 1):
        assert (last == second["evaluated"][-1]) == average


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


@pytest.mark.slow
@pytest.mark.parametrize("in_step", [True, False])
def test_one_rank_evaluates_alone_after_a_failed_fit(rank_pool, in_step):
    first, second = rank_pool(2).run(failed_fit_worker, args=(in_step,))

    assert first == second


class ReportsItsOwn(keras.Model):
    """Its evaluation reports something that is no metric."""

    def test_step(self, data):
        x, _ = data
        return {"own": tf.reduce_sum(x)}


def empty_evaluation_worker(cls):
    """Rank 0 alone has examples to evaluate with."""
    model = training.build(1, cls)
    training.compile_model(model, ring.DistributedOptimizer("sgd"))
    held = training.dataset(3 if ring.rank() == 0 else 0).batch(4)
    average = ring.callbacks.MetricAverage()
    history = training.fit(
        model,
        ring.data.shard(training.dataset(8)),
        4,
        validation_data=held,
        callbacks=[average],
    )
    return history, model.evaluate(held, return_dict=True, callbacks=[average])


@pytest.mark.parametrize(
    ("cls", "name"),
    variants([(None, "rms")], [(ReportsItsOwn, "own")]),
    ids=["metrics", "own"],
)
def test_a_rank_with_nothing_to_evaluate_reports_the_others(rank_pool, cls, name):
    first, second = rank_pool(2).run(empty_evaluation_worker, args=(cls,))

    assert first == second
    history, evaluated = first
    assert history[f"val_{name}"] == [evaluated[name]] != [0.0]


def empty_arrays_worker():
    """Rank 0 alone has a row; Keras knows how many rows a batch of arrays has."""
    x, y = training.arrays()
    model = training.build(1)
    training.compile_model(model, ring.DistributedOptimizer(keras.optimizers.SGD(0.0)))
    history = model.fit(
        *ring.data.shard((x[:8], y[:8])),
        verbose=0,
        validation_data=ring.data.shard((x[:1], y[:1]), remainder="keep"),
    ).history
    alone = model.evaluate(x[:1], y[:1], verbose=0, return_dict=True)
    return {name: history[f"val_{name}"][0] for name in alone}, alone


def test_a_rank_without_rows_to_evaluate_counts_for_nothing(rank_pool):
    for of_all, alone in rank_pool(2).run(empty_arrays_worker):
        assert of_all == pytest.approx(alone, rel=1e-6)
