"""What goes wrong in fit() is named, on every rank."""

from __future__ import annotations

import os
import signal

import keras
import pytest
import tensorflow as tf
from support import training
from support.run_ranks import run_ranks

import ring_keras as ring


def different_models_worker():
    """Rank 1's second layer is wider; then all train the same again."""
    rank = ring.rank()
    model = keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(8), keras.layers.Dense(1 + rank)]
    )
    model.compile(ring.DistributedOptimizer("sgd"), "mse")
    with pytest.raises(ring.RankMismatchError) as in_step:
        training.fit(model, training.dataset(8), 4)
    with pytest.raises(ring.RankMismatchError) as in_broadcast:
        training.fit(
            model,
            training.dataset(8),
            4,
            callbacks=[ring.callbacks.BroadcastGlobalVariables()],
        )
    same = training.build(1)
    training.compile_model(same, ring.DistributedOptimizer("sgd"))
    callbacks = [ring.callbacks.BroadcastGlobalVariables()]
    training.fit(same, training.dataset(8), 4, callbacks=callbacks)
    return str(in_step.value), str(in_broadcast.value)


def test_different_models_are_named(rank_pool):
    results = rank_pool(2).run(different_models_worker)

    assert results[0] == results[1]
    for message in results[0]:
        assert "rank 0 has" in message and "rank 1 has" in message
        assert "[8, 1]" in message and "[8, 2]" in message


class OtherGenerators(keras.Model):
    """Has no `call`: its variables are made by tracing its step."""

    def __init__(self):
        super().__init__()
        self.layer = keras.layers.Dense(3 + ring.rank())

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self.layer(data[0])))
        variables = self.layer.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


def mismatch_in_tracing_worker():
    model = OtherGenerators()
    model.compile(ring.DistributedOptimizer("sgd"))
    with pytest.raises(ring.RankMismatchError) as caught:
        training.fit(
            model,
            training.dataset(8),
            4,
            callbacks=[ring.callbacks.BroadcastGlobalVariables()],
        )
    return str(caught.value)


def test_a_mismatch_found_in_tracing_is_named(rank_pool):
    for message in rank_pool(2).run(mismatch_in_tracing_worker):
        assert "[6, 3]" in message and "[6, 4]" in message


class Dies(keras.callbacks.Callback):
    """Kills rank 1 after its second step."""

    def on_train_batch_end(self, batch, logs=None):
        if batch == 1 and ring.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)


def lost_peer_worker():
    ring.init()
    model = training.build(1)
    training.compile_model(model, ring.DistributedOptimizer("sgd"))
    training.fit(
        model,
        ring.data.shard(training.dataset(64)),
        4,
        callbacks=[ring.callbacks.BroadcastGlobalVariables(), Dies()],
    )


def test_a_lost_rank_ends_fit_with_its_name():
    first, second = run_ranks(lost_peer_worker, 2, check=False, timeout_s=90)

    assert second.signal == signal.SIGKILL
    assert first.exception_type == "PeerLostError", first.describe()
    assert "rank 1" in first.message
    assert str(second.pid) in first.message
