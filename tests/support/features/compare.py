"""Trains on all ranks and in one process, and compares."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

import ring_keras as ring
from support import training
from support.features import Difference

STEPS = 20


def standard_callbacks() -> list[keras.callbacks.Callback]:
    """What every script on several ranks has."""
    return [
        ring.callbacks.BroadcastGlobalVariables(),
        ring.callbacks.MetricAverage(),
    ]


def compare(
    make_optimizer: Callable[[], Any],
    *,
    build: Callable[[int], keras.Model] = training.build,
    build_alone: Callable[[int], keras.Model] | None = None,
    compile_model: Callable[..., Any] = training.compile_model,
    distribute: Callable[[Any], Any] = ring.DistributedOptimizer,
    data: tf.data.Dataset | None = None,
    steps: int = STEPS,
    copy: Callable[[keras.Model], keras.Model] = lambda model: model,
    policy: str = "float32",
    **fit_kwargs: Any,
) -> Difference:
    """Fits the same model on all ranks, and on the global batch.

    Args:
        make_optimizer: Called twice: optimizers cannot be shared.
        build: Makes the model from a seed.
        build_alone: Makes the one process's; the same by default.
        compile_model: Compiles it with an optimizer.
        distribute: What the ranks do to their optimizer.
        data: Examples one by one; some of the usual by default, with an uneven
            last batch.
        steps: How many global batches of those.
        copy: What the ranks do to the built and compiled model.
        policy: The dtype policy of both.
        **fit_kwargs: For both `fit`s.
    """
    size, rank = ring.size(), ring.rank()
    if data is None:
        data = training.dataset(training.steps_of(steps, size))
    with dtype_policy(policy):
        model = build(1 + rank)  # Each rank its own start.
        compile_model(model, distribute(make_optimizer()))
        model = copy(model)
        history = training.fit(
            model,
            ring.data.shard(data, remainder="keep"),
            training.BATCH,
            callbacks=standard_callbacks(),
            **fit_kwargs,
        )
        state = training.as_bytes(model.get_weights())
        if rank != 0:
            return Difference(state=state)
        alone = (build_alone or build)(1)
        compile_model(alone, make_optimizer())
        # Keras builds an optimizer while it traces the first step, where what
        # ScheduleFreeAdamW assigns to begin with is lost; so it is built here.
        for batch in data.batch(1).take(1):
            alone(batch[0])
        alone.optimizer.build(alone.trainable_variables)
        alone_history = training.fit(alone, data, training.BATCH * size, **fit_kwargs)
    return Difference(
        training.largest_difference(model.get_weights(), alone.get_weights()),
        training.history_difference(history, alone_history),
        state,
    )


@contextlib.contextmanager
def dtype_policy(name: str) -> Iterator[None]:
    """Makes layers compute in that dtype."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)
