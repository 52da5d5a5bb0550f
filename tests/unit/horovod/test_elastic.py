"""Horovod's elastic states: what they take, and what they keep."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import ring_keras.horovod.tensorflow as hvd
from ring_keras.horovod import _absent
from ring_keras.horovod.tensorflow.keras import elastic


@pytest.mark.parametrize(
    "make",
    [
        lambda model: hvd.elastic.TensorFlowKerasState(
            model, model.optimizer, backend=None, epoch=1
        ),
        lambda model: elastic.KerasState(model, epoch=1),
        lambda model: hvd.elastic.TensorFlowState(
            variables=[*model.weights, *model.optimizer.variables], epoch=1
        ),
    ],
)
def test_what_is_not_committed_is_undone(make: Any) -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)])
    model.compile(keras.optimizers.Adam(), "mse")
    model.optimizer.build(model.trainable_variables)
    state = make(model)
    kept = [np.array(weight) for weight in model.weights]

    model.optimizer.apply([tf.ones(v.shape) for v in model.trainable_variables])
    state.epoch = 2
    state.restore()

    assert state.epoch == 1
    assert int(model.optimizer.iterations.numpy()) == 0
    for weight, value in zip(model.weights, kept, strict=True):
        np.testing.assert_array_equal(np.array(weight), value)


def test_sessions_are_refused() -> None:
    with pytest.raises(_absent.AbsentError, match="session"):
        hvd.elastic.TensorFlowState(variables=[], session=object())
