"""Copies of an optimizer are ordinary ones, and tuners make many."""

from __future__ import annotations

import functools

import keras
import pytest
from support import training
from support.features.directory import common_directory

import ring_keras as ring


def callbacks():
    return [
        ring.callbacks.BroadcastGlobalVariables(),
        ring.callbacks.MetricAverage(),
        ring.callbacks.LearningRateWarmup(0.05, 3),
    ]


def build(parameters):
    """A network as a tuner wants it: each rank has other weights at first."""
    keras.utils.set_random_seed(ring.rank())
    units = parameters.Choice("units", [2, 4, 8])
    rate = parameters.Float("rate", 0.01, 0.5, sampling="log")
    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(units, activation="tanh"),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    return training.compile_model(
        model, ring.DistributedOptimizer(keras.optimizers.SGD(rate, momentum=0.9))
    )


def search_worker():
    """A search on every rank, with a directory each."""
    import keras_tuner

    size = ring.size()
    data = ring.data.shard(training.dataset(24 * size), remainder="keep").batch(4)
    validation = ring.data.shard(
        training.dataset(10 * size + 1), remainder="keep"
    ).batch(4)
    with common_directory() as directory:
        tuner = keras_tuner.RandomSearch(
            build,
            objective="val_loss",
            max_trials=3,
            seed=5,
            directory=str(directory),
            project_name=f"rank{ring.rank()}",
        )
        # The tuner copies the callbacks for every trial.
        tuner.search(
            data,
            epochs=2,
            validation_data=validation,
            verbose=0,
            callbacks=callbacks(),
        )
        trials = [
            (trial.hyperparameters.values, trial.score)
            for trial in tuner.oracle.get_best_trials(3)
        ]
        weights = tuner.get_best_models()[0].get_weights()
    return trials, training.as_bytes(weights)


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
def test_keras_tuner_decides_alike(rank_pool, size):
    pytest.importorskip("keras_tuner")

    results = rank_pool(size).run(search_worker, timeout_s=120)

    assert all(result == results[0] for result in results)
    trials, _ = results[0]
    assert len({score for _, score in trials}) > 1


def halving_worker():
    """What tuners do, by hand: many models, from one optimizer's configuration."""
    make = functools.partial(keras.optimizers.Adam, 0.05)
    config = ring.DistributedOptimizer(make()).get_config()
    data = ring.data.shard(training.dataset(16 * ring.size()))
    scores = []
    for trial in range(3):
        model = training.build(10 * trial + ring.rank())
        training.compile_model(model, keras.optimizers.Adam.from_config(config))
        history = training.fit(model, data, 4, callbacks=callbacks())
        scores.append((history["loss"], training.as_bytes(model.get_weights())))
    return scores


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_models_from_one_configuration_train_together(rank_pool, size):
    results = rank_pool(size).run(halving_worker)

    assert all(result == results[0] for result in results)
