"""The models that are trained, in TensorFlow's own Keras, whatever its version."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.ranks.agent import Operation, Request, UnsupportedError

__all__ = ["Loop", "alone", "custom_loop", "fit_loop", "train_operations"]

_CLASSES = 10


@dataclass(frozen=True)
class Loop:
    """Training that can go on.

    Attributes:
        variables: The model's.
        run: Takes steps: warm-up first, then as many as are measured; returns
            the seconds of each of these.
    """

    variables: Sequence[Any]
    run: Callable[[int, int], list[float]]


# Behind a model's name: trained with Adam, not with SGD.
_WITH_ADAM = "+adam"


def build_model(name: str) -> Any:
    """`mlp`: 6.3 million weights; `cnn`: 95 thousand; `deep`: 98 small tensors."""
    layers = tf.keras.layers
    name = name.removesuffix(_WITH_ADAM)
    if name == "mlp":
        widths = [2048, 2048, 256]
        hidden = [layers.Dense(width, activation="relu") for width in widths]
        return _sequential(784, *hidden, layers.Dense(_CLASSES))
    if name == "deep":
        hidden = [layers.Dense(32, activation="relu") for _ in range(48)]
        return _sequential(32, *hidden, layers.Dense(_CLASSES))
    return _sequential(
        784,
        layers.Reshape((28, 28, 1)),
        layers.Conv2D(32, 3, activation="relu"),
        layers.Conv2D(64, 3, strides=2, activation="relu"),
        layers.Conv2D(64, 3, activation="relu"),
        layers.Conv2D(64, 3, activation="relu"),
        layers.GlobalAveragePooling2D(),
        layers.Dense(_CLASSES),
    )


def _sequential(width: int, *layers: Any) -> Any:
    return tf.keras.Sequential([tf.keras.layers.Input((width,)), *layers])


def build_batch(name: str, rank: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Other numbers on each rank."""
    name = name.removesuffix(_WITH_ADAM)
    count = 32 if name == "cnn" else 64
    numbers = np.random.default_rng(rank)
    x = numbers.normal(size=(count, 32 if name == "deep" else 784))
    y = numbers.integers(_CLASSES, size=count)
    return tf.constant(x, tf.float32), tf.constant(y, tf.int32)


def loss_of() -> Any:
    return tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def train_operations(
    build: Callable[[str, str], Loop],
    others: Mapping[str, Callable[[str, str], Loop]] | None = None,
) -> dict[str, Operation]:
    """`train`, whose loops `build` makes for a model and a loop, and `digest`.

    `others` make those of another `state`: "sharded", where each rank has a part of the
    optimizer's state, and "meeting", where ranks only meet once in a step. A digest is
    a number that stands for the weights: the same on every rank, if the ranks trained
    together.
    """
    loops: dict[tuple[str, str, str], Loop] = {}

    def key_of(request: Request) -> tuple[str, str, str]:
        return request.text("model"), request.text("loop"), request.text("state", "")

    def train(request: Request) -> list[float]:
        key = model, loop, state = key_of(request)
        if key not in loops:
            # Not every package spreads the first weights.
            tf.keras.utils.set_random_seed(1)
            make = {"": build, **(others or {})}.get(state)
            if make is None:
                raise UnsupportedError
            loops[key] = make(model, loop)
        return loops[key].run(request.number("warmup"), request.number("samples"))

    def digest(request: Request) -> list[float]:
        variables = loops[key_of(request)].variables
        return [sum(float(np.abs(variable.numpy()).sum()) for variable in variables)]

    return {"train": train, "digest": digest}


def alone(rank: int) -> Callable[[str, str], Loop]:
    """For `train_operations`: training that no other rank takes part in."""

    def build(model: str, loop: str) -> Loop:
        if loop in ("fit", "compiled"):
            return fit_loop(model, rank, compiled=loop == "compiled")
        if loop != "custom":
            raise UnsupportedError
        return custom_loop(model, rank)

    return build


def time_steps(step: Callable[[], object], warmup: int, samples: int) -> list[float]:
    for _ in range(warmup):
        step()
    seconds = []
    for _ in range(samples):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    return seconds


def custom_loop(
    name: str,
    rank: int,
    *,
    tape_of: Callable[[tf.GradientTape], Any] = lambda tape: tape,
    average: Callable[[Sequence[tf.Tensor]], Sequence[tf.Tensor]] = lambda given: given,
    start: Callable[[Any], None] = lambda variables: None,
) -> Loop:
    """A loop of one's own around a tf.function.

    Args:
        name: Of the model.
        rank: This one.
        tape_of: Wraps the tape, for packages that reduce there.
        average: Reduces the gradients, for others.
        start: Called with the variables before the first step.
    """
    model, optimizer, loss = build_model(name), build_optimizer(name), loss_of()
    x, y = build_batch(name, rank)
    variables = model.trainable_variables
    optimizer.build(variables)
    start(variables)

    @tf.function  # type: ignore[untyped-decorator]
    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tape_of(tf.GradientTape()) as tape:
            value = loss(y, model(x, training=True))
        gradients = average(tape.gradient(value, variables))
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return value

    def run(warmup: int, samples: int) -> list[float]:
        return time_steps(lambda: step(x, y).numpy(), warmup, samples)

    return Loop(variables, run)


def fit_loop(
    name: str,
    rank: int,
    *,
    distribute: Callable[[Any], Any] = lambda optimizer: optimizer,
    callbacks: Sequence[Any] = (),
    scope: contextlib.AbstractContextManager[Any] | None = None,
    compiled: bool = False,
) -> Loop:
    """Keras' `fit`.

    Args:
        name: Of the model.
        rank: This one.
        distribute: Wraps the optimizer, so that it reduces.
        callbacks: The package's own.
        scope: What the model is made in.
        compiled: Whether XLA compiles the step.
    """
    with scope or contextlib.nullcontext():
        model = build_model(name)
        optimizer = distribute(build_optimizer(name))
        model.compile(optimizer, loss=loss_of(), jit_compile=compiled)
    dataset = tf.data.Dataset.from_tensors(build_batch(name, rank)).repeat()
    # A strategy would cut the batch into parts for the ranks.
    data_options = tf.data.Options()
    data_options.experimental_distribute.auto_shard_policy = (
        tf.data.experimental.AutoShardPolicy.OFF
    )
    dataset = dataset.with_options(data_options)

    class Clock(tf.keras.callbacks.Callback):
        def on_train_begin(self, logs: Any = None) -> None:
            self.times: list[float] = []

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.times.append(time.perf_counter())

    def run(warmup: int, samples: int) -> list[float]:
        clock = Clock()
        # One more, from whose end the first is counted.
        steps = max(1, warmup) + samples
        model.fit(
            dataset, steps_per_epoch=steps, verbose=0, callbacks=[*callbacks, clock]
        )
        seconds: list[float] = np.diff(clock.times)[-samples:].tolist()
        return seconds

    return Loop(model.trainable_variables, run)


def build_optimizer(name: str) -> Any:
    """That of a model."""
    if name.endswith(_WITH_ADAM):
        return tf.keras.optimizers.Adam(0.0001)
    return tf.keras.optimizers.SGD(0.001, momentum=0.9)
