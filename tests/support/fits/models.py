"""What drawn programs build their models of."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf

import ring_keras as ring

__all__ = [
    "AddsLoss",
    "Adversarial",
    "Attends",
    "CustomStep",
    "Subclassed",
    "TapeStep",
    "TwoOptimizers",
    "chain",
]


def chain(layers: Iterable[keras.layers.Layer], value: Any) -> Any:
    """What the layers make of a value, one after the other."""
    for layer in layers:
        value = layer(value)
    return value


@keras.saving.register_keras_serializable("fits")
class AddsLoss(keras.layers.Layer):
    """A mean over the batch, beside what is compiled."""

    def call(self, inputs):
        self.add_loss(0.1 * keras.ops.mean(keras.ops.square(inputs)))
        return inputs


@keras.saving.register_keras_serializable("fits")
class Attends(keras.layers.Layer):
    """A sequence to itself."""

    def __init__(self, **options):
        super().__init__(**options)
        # A bias of the keys has no gradient but rounding.
        self.attention = keras.layers.MultiHeadAttention(2, 2, use_bias=False)

    def build(self, shape):
        self.attention.build(shape, shape)

    def call(self, inputs):
        return self.attention(inputs, inputs)


class Subclassed(keras.Model):
    """Layers in a row, made in `__init__`, called in `call`."""

    def __init__(self, trunk, head):
        super().__init__()
        self.trunk = list(trunk)
        self.head = head

    def call(self, inputs, training=False):
        return self.head(chain(self.trunk, inputs))


@keras.saving.register_keras_serializable("fits")
class CustomStep(keras.Model):
    """A train step of one's own, over the compiled loss and optimizer."""

    def train_step(self, data):
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x, y, y_pred, weights)
            scaled = self.optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        self._loss_tracker.update_state(loss, sample_weight=tf.shape(x)[0])
        return self.get_metrics_result()


class TapeStep(Subclassed):
    """Averages gradients itself, and assigns the weights."""

    make_tape = staticmethod(tf.GradientTape)

    def train_step(self, data):
        x, y, _ = keras.utils.unpack_x_y_sample_weight(data)
        with self.make_tape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        for gradient, variable in zip(gradients, self.trainable_variables, strict=True):
            variable.assign_sub(0.1 * tf.convert_to_tensor(gradient))
        self._loss_tracker.update_state(loss, sample_weight=tf.shape(x)[0])
        return self.get_metrics_result()


class TwoOptimizers(Subclassed):
    """One optimizer for the trunk, another one for the head."""

    def compile(self, first, second, **options):
        super().compile(**options)
        self.first, self.second = first, second

    def train_step(self, data):
        x, y, _ = keras.utils.unpack_x_y_sample_weight(data)
        trunk = [v for layer in self.trunk for v in layer.trainable_variables]
        head = self.head.trainable_variables
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        gradients = tape.gradient(loss, [*trunk, *head])
        self.first.apply(gradients[: len(trunk)], trunk)
        self.second.apply(gradients[len(trunk) :], head)
        self._loss_tracker.update_state(loss, sample_weight=tf.shape(x)[0])
        return self.get_metrics_result()


class Adversarial(Subclassed):
    """Trunk and head tell examples from what a layer makes of others."""

    critic_steps = 1

    def __init__(self, trunk, head):
        super().__init__(trunk, head)
        self.forger = keras.layers.Dense(6, activation="tanh")

    def build(self, shape):
        self.forger.build(shape)
        super().build(shape)

    def compile(self, first, second, **options):
        super().compile(**options)
        self.first, self.second = first, second

    def train_step(self, data):
        x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        critic = [
            v for part in (*self.trunk, self.head) for v in part.trainable_variables
        ]
        forger = self.forger.trainable_variables
        for _ in range(self.critic_steps):
            with tf.GradientTape() as tape:
                real = self(x, training=True)
                forged = self(self.forger(x[:, ::-1]), training=True)
                loss = tf.reduce_mean((real - 1) ** 2) + tf.reduce_mean(forged**2)
            self.first.apply(tape.gradient(loss, critic), critic)
        with tf.GradientTape() as tape:
            forged = self(self.forger(x[:, ::-1]), training=True)
            deceived = tf.reduce_mean((forged - 1) ** 2)
        self.second.apply(tape.gradient(deceived, forger), forger)
        self._loss_tracker.update_state(loss, sample_weight=tf.shape(x)[0])
        return self.get_metrics_result()


def distributed_tape(**options: Any) -> Any:
    """A tape as `TapeStep` makes it on ranks."""
    return ring.DistributedGradientTape(tf.GradientTape(**options))
