"""What is distributed of a model: its optimizers say."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import keras

from ring_keras import keras_internals as internals
from ring_keras.job.process_set import ProcessSet, global_process_set
from ring_keras.optimizers.optimizer_hook import OptimizerHook

__all__ = [
    "hooks_of",
    "is_distributed",
    "is_local_in",
    "parts_of",
    "process_set_of",
    "steps_ahead",
]


def process_set_of(model: keras.Model) -> ProcessSet:
    """The ranks that train, or evaluate, this model together."""
    return next((hook.process_set for hook in hooks_of(model)), global_process_set)


def parts_of(model: keras.Model) -> list[ProcessSet]:
    """Sets of some of these ranks that meet in its steps, too; this one's."""
    parts = itertools.chain.from_iterable(hook.parts for hook in hooks_of(model))
    return [part for part in parts if part.added and part.included()]


def steps_ahead(model: keras.Model) -> int:
    """How many steps of it a rank may begin without waiting for the others."""
    return sum(hook.steps_ahead for hook in hooks_of(model))


def is_distributed(model: keras.Model) -> bool:
    """Whether an optimizer of the model is, or one inside of it."""
    return any(True for _ in hooks_of(model))


def hooks_of(model: keras.Model) -> Iterator[OptimizerHook]:
    """Those of its optimizers, and of those inside of these."""
    waiting = list(internals.optimizers_of(model))
    for optimizer in waiting:
        hook = OptimizerHook.of(optimizer)
        if hook is not None:
            yield hook
        waiting += internals.inner_optimizers(optimizer)


def is_local_in(model: keras.Model) -> Callable[[Any], bool]:
    """Says of variables whether each rank trains them alone, as of `local_layers`."""
    hooks = map(OptimizerHook.of, internals.optimizers_of(model))
    options = [hook.options for hook in hooks if hook is not None]
    return lambda variable: any(of_one.is_local(variable) for of_one in options)
