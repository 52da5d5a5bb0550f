"""Ways to train."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import ring_keras as ring
from support import training
from support.features import Difference, Feature, network
from support.features.compare import compare as compare_networks
from support.features.optimizers import ADAM, SGD

# Several of Keras's optimizers, and its norm of all gradients, take one dtype only,
# so the other groups train a network of one.
compare = functools.partial(compare_networks, build=network.build)


class CustomStep(keras.Model):
    """A train step of one's own, over a loss and an optimizer of the model's."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x, y, y_pred)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss, sample_weight=tf.shape(x)[0])
            else:
                metric.update_state(y, y_pred)
        return self.get_metrics_result()


class TapeStep(keras.Model):
    """A train step that averages gradients itself and assigns the weights."""

    distributed = True

    def train_step(self, data):
        x, y = data
        tape = tf.GradientTape()
        if self.distributed:
            tape = ring.DistributedGradientTape(tape)
        with tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x, y, y_pred)
        variables = self.trainable_variables
        for gradient, variable in zip(
            tape.gradient(loss, variables), variables, strict=True
        ):
            variable.assign_sub(0.1 * gradient)
        return self.compute_metrics(x, y, y_pred)


def _custom_step(seed: int) -> keras.Model:
    return network.build(seed, CustomStep)


def _tape_step() -> Difference:
    models: list[keras.Model] = []

    def build(seed: int) -> keras.Model:
        model = network.build(seed, TapeStep)
        model.distributed = not models  # The second one trains alone.
        models.append(model)
        return model

    # `compile()` wants an optimizer; the step does without.
    return compare(SGD, build=build, distribute=lambda optimizer: optimizer)


def _options(**options: Any) -> Callable[..., keras.Model]:
    return functools.partial(training.compile_model, **options)


def _summed(
    reduction: str | None = "sum",
    distribute: Callable[[Any], Any] = ring.DistributedOptimizer,
    build: Callable[[int], keras.Model] = network.build,
) -> Difference:
    def compile_model(model: keras.Model, optimizer: Any) -> None:
        model.compile(optimizer, keras.losses.BinaryCrossentropy(reduction=reduction))

    # What Keras reports is the mean over batches of each one's sum, and so as
    # many times larger as batches are.
    found = compare(
        functools.partial(keras.optimizers.SGD, 0.01),
        build=build,
        compile_model=compile_model,
        distribute=distribute,
    )
    return Difference(found.weights, None, found.state)


def _by_sum(optimizer: Any) -> Any:
    return ring.DistributedOptimizer(optimizer, op=ring.Sum)


class AddsLoss(keras.layers.Layer):
    """A mean over the batch, beside what is compiled."""

    def call(self, inputs):
        self.add_loss(0.1 * keras.ops.mean(keras.ops.square(inputs)))
        return inputs


def _with_other_losses(seed: int) -> keras.Model:
    """Every kind of loss that is not compiled."""
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.layers.Dense(8, "tanh", kernel_regularizer="l2"),
            keras.layers.Dense(8, activity_regularizer="l2"),
            AddsLoss(),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )


def _summed_and_mean() -> Difference:
    def compile_model(model: keras.Model, optimizer: Any) -> None:
        model.compile(
            optimizer,
            {
                "label": keras.losses.BinaryCrossentropy(reduction="sum"),
                "sum": keras.losses.MeanSquaredError(),
            },
            loss_weights={"label": 0.1, "sum": 0.3},
        )

    found = compare(
        functools.partial(keras.optimizers.SGD, 0.01),
        build=_two_outputs,
        compile_model=compile_model,
        data=_two_labels(training.steps_of(10, ring.size())),
    )
    return Difference(found.weights, None, found.state)


def _data(*extra: Callable[[int], np.ndarray]) -> tf.data.Dataset:
    """The usual examples and something besides, as many as 10 uneven steps have."""
    count = training.steps_of(10, ring.size())
    x, y = (array[:count] for array in training.arrays())
    return tf.data.Dataset.from_tensor_slices((x, y, *(make(count) for make in extra)))


def _weights(count: int) -> np.ndarray:
    return np.random.default_rng(5).uniform(0, 3, count).astype(np.float32)


def _sample_weights() -> Difference:
    def compile_model(model: keras.Model, optimizer: Any) -> None:
        model.compile(
            optimizer,
            "binary_crossentropy",
            metrics=["accuracy"],
            weighted_metrics=["accuracy"],
        )

    # Not Adam: a common factor, as of weights gone wrong, is nothing to it, and where
    # a gradient nearly cancels out it divides what is left by itself. Then the order
    # of a sum, with no weights at all, shows in the sixth digit; in float64, or with
    # an epsilon of 1e-3, it does not.
    return compare(SGD, compile_model=compile_model, data=_data(_weights))


def _mean_with_sample_weight() -> Difference:
    def compile_model(model: keras.Model, optimizer: Any) -> None:
        loss = keras.losses.BinaryCrossentropy(reduction="mean_with_sample_weight")
        model.compile(optimizer, loss)

    # Keras reports such a loss weighted by numbers of examples, batch by batch,
    # so the reported value depends on how data are cut into batches.
    found = compare(SGD, compile_model=compile_model, data=_data(_weights))
    return Difference(found.weights, None, found.state)


def _two_outputs(seed: int) -> keras.Model:
    keras.utils.set_random_seed(seed)
    inputs = keras.Input((6,))
    hidden = keras.layers.Dense(8, activation="tanh")(inputs)
    return keras.Model(
        inputs,
        {
            "label": keras.layers.Dense(1, activation="sigmoid")(hidden),
            "sum": keras.layers.Dense(1)(hidden),
        },
    )


def _two_labels(count: int) -> tf.data.Dataset:
    return training.dataset(count).map(
        lambda x, y: (x, {"label": y, "sum": tf.reduce_sum(x, keepdims=True)})
    )


def _several_losses() -> Difference:
    def compile_model(model: keras.Model, optimizer: Any) -> None:
        model.compile(
            optimizer,
            {"label": "binary_crossentropy", "sum": "mse"},
            loss_weights={"label": 1.0, "sum": 0.3},
            metrics={"label": ["accuracy"], "sum": ["mae"]},
        )

    # Keras takes each output's reported loss as a mean over batches where it does
    # not know their sizes, whatever they are; so no uneven batch here.
    data = _two_labels(10 * training.BATCH * ring.size())
    return compare(ADAM, build=_two_outputs, compile_model=compile_model, data=data)


def _regularized(seed: int) -> keras.Model:
    return network.build(
        seed, kernel_regularizer="l2", kernel_constraint=keras.constraints.MaxNorm(1.0)
    )


def _embedding(seed: int) -> keras.Model:
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.layers.Embedding(30, 4),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )


def _sparse_gradients() -> Difference:
    count = training.steps_of(10, ring.size())
    generator = np.random.default_rng(3)
    words = generator.integers(0, 30, size=(count, 5))
    labels = generator.integers(0, 2, size=(count, 1)).astype(np.float32)
    data = tf.data.Dataset.from_tensor_slices((words, labels))
    return compare(SGD, build=_embedding, data=data)


def _frozen(seed: int) -> keras.Model:
    model = network.build(seed)
    model.layers[0].trainable = False
    return model


FEATURES = [
    Feature(
        "run_eagerly", lambda: compare(ADAM, compile_model=_options(run_eagerly=True))
    ),
    Feature(
        "steps_per_execution",
        lambda: compare(ADAM, compile_model=_options(steps_per_execution=7)),
    ),
    Feature(
        "jit_compile", lambda: compare(ADAM, compile_model=_options(jit_compile=True))
    ),
    Feature("train_step of one's own", lambda: compare(ADAM, build=_custom_step)),
    Feature("DistributedGradientTape in a train_step", _tape_step),
    Feature('loss with reduction="sum"', _summed),
    Feature(
        'loss with reduction="sum", op=ring.Sum',
        functools.partial(_summed, distribute=_by_sum),
    ),
    Feature("loss with reduction=None", functools.partial(_summed, None)),
    Feature(
        'loss with reduction="sum", regularizers, add_loss',
        functools.partial(_summed, build=_with_other_losses),
    ),
    Feature('two losses, one with reduction="sum"', _summed_and_mean),
    Feature("sample_weight", _sample_weights),
    Feature(
        'sample_weight, reduction="mean_with_sample_weight"', _mean_with_sample_weight
    ),
    Feature("class_weight", lambda: compare(ADAM, class_weight={0: 1.0, 1: 3.0})),
    Feature("several outputs, losses and loss_weights", _several_losses),
    Feature("regularizers and constraints", lambda: compare(ADAM, build=_regularized)),
    Feature("layers with trainable=False", lambda: compare(ADAM, build=_frozen)),
    Feature("several epochs", lambda: compare(ADAM, epochs=3, steps=8)),
    Feature("Embedding (sparse gradients)", _sparse_gradients),
    # Halves lose more than 3 digits of 4 in every gradient.
    Feature(
        "mixed_float16",
        lambda: compare(SGD, policy="mixed_float16"),
        weight_limit=5e-3,
        metric_limit=5e-3,
    ),
    Feature(
        "mixed_bfloat16",
        lambda: compare(SGD, policy="mixed_bfloat16"),
        weight_limit=5e-2,
        metric_limit=5e-2,
    ),
]
