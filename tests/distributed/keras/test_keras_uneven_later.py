"""Padding and empty batches in a model whose steps were traced before there were any.

In processes of their own: what a process has made once, later steps look for.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import training
from support.run_ranks import run_ranks

import ring_keras as ring

ROWS = 13
BATCH = 4


def network():
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((6,)), *layers])
    optimizer = keras.optimizers.SGD(0.1)
    if ring.is_initialized():
        optimizer = ring.DistributedOptimizer(optimizer)
    model.compile(optimizer, loss="mse", weighted_metrics=["mae"])
    return model


def rows(count, *, weighted):
    x, y = (array[:count] for array in training.arrays())
    arrays = (x, y, np.ones(count, "float32")) if weighted else (x, y)
    return tf.data.Dataset.from_tensor_slices(arrays)


def part(dataset, **options):
    if not ring.is_initialized():
        return dataset.batch(BATCH)
    return ring.data.shard(dataset, **options).batch(BATCH // ring.size())


def other_kinds_first():
    model = network()
    model.fit(part(rows(12, weighted=True)), verbose=0)
    model.fit(part(rows(12, weighted=False)), verbose=0)
    padded = part(rows(ROWS, weighted=True), remainder="pad")
    return model, model.fit(padded, verbose=0).history


def of_an_earlier_job():
    padded = part(rows(ROWS, weighted=True), remainder="pad")
    if ring.is_initialized():
        ring.shutdown()
        ring.init()
    model = network()
    history = model.fit(padded, verbose=0).history
    history["evaluated"] = model.evaluate(padded, verbose=0, callbacks=averaging())
    return model, history


def averaging():
    return [ring.callbacks.MetricAverage()] if ring.is_initialized() else []


def in_a_loop():
    model = network()
    model.fit(part(rows(12, weighted=True)), verbose=0)
    for batch in part(rows(ROWS, weighted=True), remainder="pad"):
        model.train_on_batch(*batch)
    return model, {"nothing": [0.0]}


def trained(how):
    model, history = how()
    return model.get_weights(), history


def trained_on_ranks(how):
    ring.init()
    return trained(how)


@pytest.mark.parametrize("how", [other_kinds_first, of_an_earlier_job, in_a_loop])
def test_padding_of_data_that_came_later_counts_for_nothing(how):
    results = run_ranks(trained_on_ranks, 2, args=(how,))

    weights, history = trained(how)
    for theirs, told in results:
        assert training.largest_difference(theirs, weights) < 1e-6
        assert training.history_difference(told, history) < 1e-6


def joined_later():
    """The weights with a fit of other batches between, and without."""
    ring.init()
    found = []
    for kinds in ([False, True], [False]):
        keras.utils.set_random_seed(1)
        layers = [keras.layers.BatchNormalization(), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((6,)), *layers])
        optimizer = ring.DistributedOptimizer(keras.optimizers.SGD(0.1))
        model.compile(optimizer, loss="mse")
        for weighted in kinds:
            dataset = ring.data.shard(rows(12, weighted=weighted))
            model.fit(dataset.batch(2, drop_remainder=weighted), verbose=0)
        model.set_weights([np.ones_like(one) for one in model.get_weights()])
        mine = rows(8, weighted=False).skip(4 * ring.rank())
        model.fit(ring.data.join(mine.batch(2)), verbose=0)
        found.append(model.get_weights())
    return found


def test_empty_batches_of_data_that_came_later_count_for_nothing():
    for others_first, alone in run_ranks(joined_later, 2):
        assert np.isfinite(np.concatenate(list(map(np.ravel, alone)))).all()
        for one, other in zip(others_first, alone, strict=True):
            np.testing.assert_array_equal(one, other)
