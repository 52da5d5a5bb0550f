"""A validation whose data may end on some ranks before others."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import keras

from ring_keras import keras_internals as internals
from ring_keras.backends.common.joined_batches import (
    JoinedBatches,
    StandIn,
    in_joined_step,
)
from ring_keras.job.process_set import ProcessSet
from ring_keras.training.epoch_agreement import EpochAgreement

__all__ = ["JoinedTests"]


class JoinedTests:
    """Has callbacks of all ranks hear of the same batches.

    Ranks without data compute nothing, and have the logs of their last batch.

    Args:
        model: Which `fit` evaluates.
        process_set: The ranks that do.
    """

    def __init__(self, model: keras.Model, process_set: ProcessSet) -> None:
        self._model = model
        self._agreement = EpochAgreement(
            model,
            process_set,
            lambda: False,
            name="fit/goes_on/tests",
            flag="stop_evaluating",
        )
        self._batches = JoinedBatches(self._agreement)
        self._function: Callable[..., Any] | None = None
        self._has_batch = False
        self._is_made = False
        self._logs: Any = {}

    def begin(self, epoch_iterator: Any) -> None:
        """An evaluation has made its function, and begins with these data."""
        self._agreement.begin_epoch()
        self._logs = {}
        internals.ask_to_the_last(epoch_iterator, self._next_batches)
        if not self._is_made:  # What is traced already would not be looked at.
            self._model.make_test_function(force=True)
            self._is_made = True
        self._take_function()

    def end(self) -> None:
        """Its steps are done; a collective. A callback may have ended them."""
        self._agreement.end_epoch()
        self.drop()

    def drop(self) -> None:
        """The model has its own function again."""
        if self._function is not None:
            self._model.test_function = self._function
            self._function = None

    @contextlib.contextmanager
    def around_another(self) -> Iterator[None]:
        """In it a callback evaluates the model."""
        is_under_way = self._function is not None
        self.drop()
        try:
            yield
        finally:
            if is_under_way:
                self._take_function()

    def _take_function(self) -> None:
        self._function = self._model.test_function
        self._model.test_function = self._run

    def _next_batches(self, batches: Iterator[Any]) -> Iterator[Any] | None:
        batch = self._batches.take(batches)
        self._has_batch = not isinstance(batch, StandIn)
        return None if batch is None else itertools.chain([batch], batches)

    def _run(self, *given: Any) -> Any:
        """As Keras's function: on JAX of a state, too, which it returns."""
        *state, _ = given
        if self._has_batch:
            assert self._function is not None
            with in_joined_step():
                result = self._function(*given)
            self._logs, *state = result if state else [result]
        return (self._logs, *state) if state else self._logs
