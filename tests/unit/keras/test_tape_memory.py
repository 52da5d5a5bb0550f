"""Tapes keep nothing of a model that is gone."""

import gc
import weakref

import keras
import pytest
import tensorflow as tf

import ring_keras as ring


@pytest.fixture(autouse=True)
def job():
    ring.init()
    yield
    ring.shutdown()


def test_a_model_that_was_dropped_is_freed():
    def train() -> weakref.ref:
        layer = keras.layers.Dense(1)
        layer.build((None, 2))
        for _ in range(2):
            tape = ring.DistributedGradientTape(
                tf.GradientTape(), backward_passes_per_step=2, local_layers=[layer]
            )
            with tape:
                loss = tf.reduce_sum(layer(tf.ones((1, 2))))
            gradients = tape.gradient(loss, layer.trainable_variables)
        assert gradients[0].numpy().tolist() == [[2.0], [2.0]]
        return weakref.ref(layer.trainable_variables[0].value)

    variable = train()
    gc.collect()

    assert variable() is None
