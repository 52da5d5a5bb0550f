"""Executions of several steps on JAX, whose batches Keras 3.16 stacks."""

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import keras

from ring_keras.keras_internals.names import EPOCH_BATCHES
from ring_keras.keras_internals.private_names import private

__all__ = ["hand_out_batches_singly", "one_step_at_a_time", "one_step_function"]


def hand_out_batches_singly(epoch_iterator: Any) -> None:
    """Has each epoch of a `fit` that begins get batches as the data have them.

    Args:
        epoch_iterator: That of the call.
    """
    of = weakref.ref(epoch_iterator)  # Else it would live on, with its data.
    private(epoch_iterator, EPOCH_BATCHES)  # Else nobody would call it.

    def batches() -> Any:
        asked = of()
        assert asked is not None
        with one_step_at_a_time(asked):
            return getattr(type(asked), EPOCH_BATCHES)(asked)

    vars(epoch_iterator)[EPOCH_BATCHES] = batches


@contextlib.contextmanager
def one_step_at_a_time(target: Any) -> Iterator[None]:
    """In it Keras makes something of a model, or of an iterator, for single steps."""
    kept = target.steps_per_execution
    target.steps_per_execution = 1
    try:
        yield
    finally:
        target.steps_per_execution = kept


def one_step_function(model: keras.Model) -> Callable[..., Any]:
    """A train function like the model's, which stays as it is, for single steps."""
    kept = model.train_function
    try:
        with one_step_at_a_time(model):
            model.make_train_function(force=True)
        function: Callable[..., Any] = model.train_function
        return function
    finally:
        model.train_function = kept
