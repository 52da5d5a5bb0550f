"""Training inside a scope of `tf.device`: on that device."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf
from support import training
from support.run_ranks import run_ranks

import ring_keras as ring
from ring_keras import _libraries

STEPS = 6


class Placed(keras.Sequential):
    """Notes where its steps have put their results."""

    def __init__(self, layers):
        super().__init__(layers)
        self.places = set()

    def make_train_function(self, force=False):
        super().make_train_function(force)
        train = self.train_function

        def noted(iterator):
            logs = train(iterator)
            self.places |= {value.device[-5:] for value in tf.nest.flatten(logs)}
            return logs

        self.train_function = noted


def fit_on_second_device(jit_compile, make_optimizer):
    """Has two devices of which TensorFlow takes the other one by itself."""
    two = [tf.config.LogicalDeviceConfiguration()] * 2
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, two)
    ring.init()
    data = training.dataset(training.steps_of(STEPS, ring.size(), uneven=False))
    with tf.device("CPU:1"):
        model = Placed(training.build(1).layers)
        optimizer = ring.DistributedOptimizer(make_optimizer())
        training.compile_model(model, optimizer, jit_compile=jit_compile)
        training.fit(model, ring.data.shard(data), training.BATCH, epochs=2)
    return set(model.places), training.as_bytes(model.get_weights())


def scaled_accumulation():
    """Whose reduction is in two conditions, the outer of which is the host's."""
    inner = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
    return keras.optimizers.LossScaleOptimizer(inner, initial_scale=8.0)


@pytest.mark.parametrize(
    ("jit_compile", "make_optimizer"),
    [
        (False, keras.optimizers.SGD),
        pytest.param(
            True,
            scaled_accumulation,
            marks=[
                pytest.mark.slow,
                pytest.mark.skipif(
                    not _libraries.has_xla_kernels(),
                    reason="needs TensorFlow 2.20 or newer",
                ),
            ],
        ),
    ],
)
def test_fit_trains_on_the_device_of_its_scope(jit_compile, make_optimizer):
    worker = fit_on_second_device
    first, second = run_ranks(worker, 2, args=(jit_compile, make_optimizer))
    assert first == second
    assert first[0] == {"CPU:1"}
