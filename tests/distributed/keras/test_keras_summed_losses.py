"""Losses that add up their batch: refused where the update would be wrong.

That it is right elsewhere is measured by the features with `reduction="sum"`.
"""

from __future__ import annotations

import functools

import keras
import pytest
import tensorflow as tf
from support import training
from support.features.compare import compare
from support.log_texts import LogTexts
from support.run_ranks import run_ranks

import ring_keras as ring


def fit(model, **kwargs):
    data = ring.data.shard(training.dataset(4 * training.BATCH * ring.size()))
    training.fit(model, data, training.BATCH, **kwargs)


def summed(optimizer, **layer_kwargs):
    model = training.build(1, **layer_kwargs)
    model.compile(optimizer, keras.losses.BinaryCrossentropy(reduction="sum"))
    return model


class TapeOfOtherOp(keras.Model):
    """Reduces by another op than its optimizer."""

    def train_step(self, data):
        x, y = data
        tape = ring.DistributedGradientTape(tf.GradientTape(), op=ring.Sum)
        with tape:
            loss = self.compute_loss(x, y, self(x))
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


def refused_worker():
    callbacks = [ring.callbacks.BroadcastGlobalVariables()]
    with pytest.raises(ring.RingKerasError, match=r"op=ring_keras\.Sum"):
        alone = summed(ring.DistributedOptimizer("sgd"))
        alone.train_on_batch(*training.arrays())
    by_sum = ring.DistributedOptimizer("sgd", op=ring.Sum)
    with pytest.raises(ring.RingKerasError, match="Leave out op"):
        fit(summed(by_sum, kernel_regularizer="l2"), callbacks=callbacks)
    inputs = keras.Input((6,))
    model = TapeOfOtherOp(inputs, keras.layers.Dense(1, "sigmoid")(inputs))
    model.compile("sgd", keras.losses.BinaryCrossentropy(reduction="sum"))
    with pytest.raises(ring.RingKerasError, match="same op"):
        fit(model, callbacks=callbacks)


def test_what_would_be_wrong_is_refused(rank_pool):
    rank_pool(2).run(refused_worker)


class OwnLoss(keras.Model):
    """Reduces what its loss has computed of each example."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, **kwargs):
        return tf.reduce_sum(self.loss(y, y_pred))


def told_worker(reduction):
    ring.init()
    found = []
    for cls in (None, OwnLoss):
        model = training.build(1, cls)
        optimizer = ring.DistributedOptimizer(keras.optimizers.SGD(0.01))
        model.compile(optimizer, keras.losses.BinaryCrossentropy(reduction=reduction))
        with LogTexts() as texts:
            fit(model, callbacks=[ring.callbacks.BroadcastGlobalVariables()])
        found.append(len([text for text in texts if "RK603" in text]))
    return found


@pytest.mark.parametrize("reduction", ["sum", None])
def test_what_own_code_may_have_made_a_mean_is_told_once(reduction):
    assert run_ranks(told_worker, 2, args=(reduction,)) == [[0, 1], [0, 0]]


class MeanOfBatch(keras.losses.Loss):
    """One number of the batch, which Keras is to leave as it is."""

    def call(self, y_true, y_pred):
        return tf.reduce_mean(tf.square(y_pred - tf.cast(y_true, y_pred.dtype)))


def one_number_worker():
    def compile_model(model, optimizer):
        model.compile(optimizer, MeanOfBatch(reduction=None))

    make = functools.partial(keras.optimizers.SGD, 0.1)
    return compare(make, compile_model=compile_model).weights


def test_one_number_without_a_reduction_is_a_mean(rank_pool):
    assert rank_pool(2).run(one_number_worker)[0] <= 1e-6


def out_of_data_worker():
    """One rank has data for one step less: it counts for nothing there."""
    size = ring.size()
    count = 3 * training.BATCH * size
    model = summed(ring.DistributedOptimizer(keras.optimizers.SGD(0.01)))
    alone = summed(keras.optimizers.SGD(0.01))
    data = training.dataset(count)
    own = (
        data.batch(training.BATCH)
        .enumerate()
        .filter(lambda n, _: n % size == ring.rank())
        .map(lambda _, batch: batch)
    )
    if ring.rank() == 1:
        own = own.take(2)
    model.fit(
        ring.data.join(own),
        verbose=0,
        callbacks=[ring.callbacks.BroadcastGlobalVariables()],
    )
    together = [training.BATCH * size] * 2 + [training.BATCH]
    x, y = training.arrays()
    start = 0
    for batch in together:
        rows = slice(start, start + batch)
        alone.train_on_batch(x[rows], y[rows])
        start += batch
    return training.largest_difference(model.get_weights(), alone.get_weights())


@pytest.mark.slow
def test_a_rank_without_data_adds_nothing(rank_pool):
    assert max(rank_pool(2).run(out_of_data_worker)) <= 1e-6


def left_as_it_was_worker():
    """What a fit has done to the loss is gone with it."""
    model = summed(ring.DistributedOptimizer("sgd"))
    before = dict(vars(model.loss))
    fit(model, callbacks=[ring.callbacks.BroadcastGlobalVariables()])
    assert vars(model.loss) == before


def test_the_loss_is_left_as_it_was(rank_pool):
    rank_pool(2).run(left_as_it_was_worker)
