"""Data were divided, and nobody divides the work: who trains alone is told."""

from __future__ import annotations

import warnings

import keras
import pytest
import tensorflow as tf
from support import run_ranks, training
from support.log_texts import LogTexts

import ring_keras as ring


class TapeModel(keras.Model):
    """Averages in a step of its own."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x, y = data
        with ring.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_mean((self(x, training=True) - y) ** 2)
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


def told(data, model=None, callbacks=(), *, distributed=False):
    """What a `fit` warns of."""
    keras.utils.set_random_seed(1)
    model = model or training.build(1)
    optimizer = keras.optimizers.SGD(0.01)
    model.compile(
        ring.DistributedOptimizer(optimizer) if distributed else optimizer, "mse"
    )
    with LogTexts() as texts:
        if isinstance(data, tuple):
            x, y = data
            model.fit(x, y, epochs=2, verbose=0, callbacks=list(callbacks))
        else:
            model.fit(data.batch(4), epochs=2, verbose=0, callbacks=list(callbacks))
    return texts


def lone_fits_worker():
    x, y = (array[:16] for array in training.arrays())
    dataset = tf.data.Dataset.from_tensor_slices((x, y))
    part = ring.data.shard(dataset, seed=1)
    found = {
        "dataset": told(part),
        "unshuffled dataset": told(ring.data.shard(dataset).map(lambda x, y: (x, y))),
        "arrays": told(ring.data.shard((x, y))),
        "distributed": told(part, distributed=True),
        "callback": told(part, callbacks=[ring.callbacks.BroadcastGlobalVariables()]),
        "all in one callback": told(part, callbacks=[ring.callbacks.Distributed()]),
        "tape": told(part, model=TapeModel()),
        "whole data": told(dataset),
    }
    with LogTexts() as found["divided twice"]:
        ring.data.shard(part, seed=1)
    with LogTexts() as found["divided twice, elsewhere"]:
        ring.data.shard(dataset, seed=1)
    return ring.rank(), found


@pytest.mark.slow
def test_each_rank_that_trains_a_model_of_its_own_is_told(rank_pool) -> None:
    for rank, found in rank_pool(2).run(lone_fits_worker):
        warned = {case for case, texts in found.items() if texts}
        if rank != 0:
            assert warned == set()
            continue
        assert warned == {"dataset", "unshuffled dataset", "arrays", "divided twice"}
        for case in ("dataset", "unshuffled dataset", "arrays"):
            (text,) = found[case]
            assert "not distributed, so each rank trains a model of its own" in text
            assert "ring_keras.DistributedOptimizer(optimizer)" in text
        (text,) = found["divided twice"]
        assert "are a rank's part already" in text


def one_rank_worker():
    x, y = (array[:16] for array in training.arrays())
    return told(ring.data.shard((x, y)))


def test_a_job_of_one_rank_is_not_told(rank_pool) -> None:
    assert rank_pool(1).run(one_rank_worker) == [[]]


def without_init_worker():
    ring.shutdown()
    x, y = (array[:16] for array in training.arrays())
    model = training.build(1)
    model.compile("sgd", "mse")
    with pytest.raises(ring.NotInitializedError, match=r"init\(\)"):
        model.fit(x, y, verbose=0, callbacks=[ring.callbacks.Distributed()])


def test_a_callback_is_no_use_before_init() -> None:
    run_ranks(without_init_worker, 1)


def warned_of_order_worker() -> list[str]:
    """What `fit` says of data that `shard` shuffles."""
    x, y = (array[:16] for array in training.arrays())
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        part = ring.data.shard(tf.data.Dataset.from_tensor_slices((x, y)), seed=1)
        told(part, distributed=True)
    return [str(one.message) for one in found]


def test_nobody_is_told_that_the_order_of_shard_is_no_order(rank_pool) -> None:
    for texts in rank_pool(2).run(warned_of_order_worker):
        assert [text for text in texts if "shuffle" in text] == []
