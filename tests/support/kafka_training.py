"""A model that is trained on messages of Kafka, which are numbers."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

import ring_keras as ring
from support import training

BATCH = 4
COUNT = 60
"""The messages are lower numbers."""


def build(optimizer):
    """A model in which each message has weights of its own."""
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.Input((COUNT,)),
            keras.layers.Dense(4, activation="tanh"),
            keras.layers.Dense(1),
        ]
    )
    model.compile(optimizer(keras.optimizers.SGD(0.1, momentum=0.9)), "mse")
    return model


def examples(batch):
    numbers = tf.strings.to_number(batch["value"], tf.int32)
    return tf.one_hot(numbers, COUNT), tf.cast(numbers % 7, tf.float32)[:, None] / 7


def callbacks_of(resume, *others):
    return [*others, resume, ring.callbacks.BroadcastGlobalVariables()]


class InterruptError(Exception):
    """As a crash would end a `fit`, after so many steps."""


class Interrupts(keras.callbacks.Callback):
    """Raises it."""

    def __init__(self, steps):
        super().__init__()
        self._steps = steps

    def on_train_batch_end(self, batch, logs=None):
        if int(self.model.optimizer.iterations) == self._steps:
            raise InterruptError


class Job:
    """What ranks do in one test with the files of a directory."""

    def __init__(self, topic, directory, config):
        self.topic, self.directory, self.config = topic, directory, config

    def batches(self, name, resume, **kwargs):
        if "after" in kwargs:
            kwargs["after"] = f"{self.directory}/{kwargs['after']}"
        return ring.data.shard_kafka(
            self.topic,
            f"{self.directory}/{name}",
            batch_size=BATCH,
            config=self.config,
            resume=resume,
            **kwargs,
        )

    def train(self, model, name, *others, epochs=1, change=None, **kwargs):
        """Returns the number of steps that the model has taken."""
        resume = ring.data.Resume()
        data = self.batches(name, resume, **kwargs).map(examples)
        if change is not None:
            data = change(data)
        callbacks = callbacks_of(resume, *others)
        model.fit(data, epochs=epochs, verbose=0, callbacks=callbacks)
        return int(model.optimizer.iterations)

    def refused(self, model, name, *others, error=ValueError, **kwargs):
        """Returns what is said, when nothing was trained on."""
        before = training.as_bytes(model.get_weights())
        with pytest.raises(error) as caught:
            self.train(model, name, *others, **kwargs)
        assert training.as_bytes(model.get_weights()) == before
        return str(caught.value)


def rows_trained(model, before):
    """The messages that a model has been trained on since."""
    changed = (model.get_weights()[0] != before[0]).any(axis=1)
    return changed.nonzero()[0].tolist()
