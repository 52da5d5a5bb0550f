"""What goes wrong in fit() is named, on every rank."""

from __future__ import annotations

import functools
import os
import signal

import keras
import numpy as np
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


def checked(x, y):
    return tf.debugging.check_numerics(x, "img_0042 is no image"), y


def bad_part(known):
    """Rank 1 has one bad record, in its third batch."""
    x, y = (array[:40].copy() for array in training.arrays())
    if ring.rank() == 1:
        x[9] = np.nan
    data = tf.data.Dataset.from_tensor_slices((x, y)).map(checked)
    return data if known else data.filter(lambda *_: True)


class RaisesInMetric(keras.metrics.Mean):
    """Fails on rank 1 when it has seen some batches; nothing waits for it."""

    def __init__(self):
        super().__init__(name="raises")
        self.seen = self.add_variable((), "zeros", name="seen")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.seen.assign_add(1.0)
        last = 3.0 if ring.rank() == 1 else 1e9
        with tf.control_dependencies(
            [tf.debugging.assert_less(tf.convert_to_tensor(self.seen), last, "label")]
        ):
            return super().update_state(tf.identity(y_pred))


class RaisesInLayer(keras.layers.Layer):
    """The same, between two layers that need all ranks' moments."""

    def build(self, input_shape):
        self.seen = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, inputs):
        self.seen.assign_add(1.0)
        last = 3.0 if ring.rank() == 1 else 1e9
        with tf.control_dependencies(
            [tf.debugging.assert_less(tf.convert_to_tensor(self.seen), last, "label")]
        ):
            return tf.identity(inputs)


IN_A_LAYER = ("layer", "accumulation")


def normalized():
    return training.assemble(
        1,
        lambda: [
            keras.layers.BatchNormalization(synchronized=True),
            RaisesInLayer(),
            keras.layers.Dense(4),
            keras.layers.BatchNormalization(synchronized=True),
            keras.layers.Dense(1, activation="sigmoid"),
        ],
        None,
    )


def caught_worker(kind):
    """A fit that fails on one rank is caught; the next trains."""
    passes = 3 if kind == "accumulation" else None
    model = training.compile_model(
        normalized() if kind in IN_A_LAYER else training.build(1),
        ring.DistributedOptimizer(
            keras.optimizers.SGD(0.1, gradient_accumulation_steps=passes)
        ),
        jit_compile=kind == "compiled",
        steps_per_execution=2 if kind == "execution of two" else 1,
    )
    if kind == "metric":
        model.compile(
            model.optimizer,
            "binary_crossentropy",
            metrics=[RaisesInMetric()],
            jit_compile=False,  # Under XLA it raises nothing.
        )
    data = training.dataset(40)
    if kind not in (*IN_A_LAYER, "metric"):
        data = bad_part(known=kind != "unknown length")
    caught = []
    for _ in range(2):  # It fails again.
        try:
            training.fit(model, data, 4, epochs=3)
        except Exception as error:
            caught.append(f"{type(error).__name__}: {error}")
    good = training.distributed_model(3)
    history = training.fit(good, ring.data.shard(training.dataset(48)), 4, epochs=2)
    return caught, good.get_weights(), history


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "kind",
    [
        "known length",
        "unknown length",
        "compiled",
        "execution of two",
        *IN_A_LAYER,
        "metric",
    ],
)
def test_a_fit_that_fails_on_one_rank_can_be_caught(rank_pool, kind, size):
    worker = functools.partial(caught_worker, kind=kind)
    results = rank_pool(size).run(worker, timeout_s=150)

    model = training.compile_model(training.build(3), training.OPTIMIZERS["sgd"]())
    history = training.fit(model, training.dataset(48), 4 * size, epochs=2)
    cause = "label" if kind in (*IN_A_LAYER, "metric") else "img_0042 is no image"
    for rank, (caught, weights, theirs) in enumerate(results):
        assert len(caught) == 2
        for message in caught:
            assert cause in message
            if rank != 1:
                assert message.startswith("RankMismatchError: [RK310] "), message
                assert "rank 1 cannot take part: its step raised Invalid" in message
        assert training.largest_difference(weights, model.get_weights()) < 1e-6
        assert training.history_difference(theirs, history) < 1e-6
