"""The executions of a `fit` on TensorFlow: all ranks run one, or none does."""

from collections.abc import Callable
from typing import Any

import keras

from ring_keras import keras_internals as internals
from ring_keras.errors import translated
from ring_keras.keras_internals import calls
from ring_keras.training.step_thread import call_beside
from ring_keras.training.taken_batches import TakenBatches
from ring_keras.training.train_step import failures_noted, is_for_xla

__all__ = ["AskedExecutions"]


class AskedExecutions:
    """Has the ranks ask each other before callbacks hear of an execution.

    So no callback hears of a batch that some ranks do not take: what it trains and
    saves there, it does on all of them.

    Args:
        model: The model that is trained.
        goes_on: Asks whether all run an execution, given how many batches this rank
            has for it, or None; collective.
    """

    def __init__(
        self, model: keras.Model, goes_on: Callable[[int | None], bool]
    ) -> None:
        self._model = model
        self._goes_on = goes_on
        self._batches: TakenBatches | None = None
        self.steps: int | None = None
        """How many the next execution has, where its batches have been taken."""
        self.are_asked = False
        """Whether Keras goes through them, and has asked before each."""

    def take_batches(self) -> None:
        """From now on before the ranks ask: some may run out of data before others."""
        self._batches = TakenBatches(self._model.steps_per_execution)

    def ask_in(self, run: calls.Run) -> None:
        """From now on Keras asks before each of that call.

        Not in a `fit` of the program's own, with a loop in which nothing of Keras's
        goes through the steps: there the train function asks, as in an elastic one.
        """
        if internals.has_steps(run.epoch_iterator):
            internals.ask_before_steps(run.epoch_iterator, self.next)
            self.are_asked = True

    @translated()
    def next(self, iterator: Any) -> Any:
        """The iterator with the batches of the next one; None if none runs it."""
        if self._batches is not None:
            with failures_noted(self._model):
                self.steps, iterator = self._batches.take(
                    iterator,
                    lambda function, data: call_beside(self._model, function, data),
                    for_xla=is_for_xla(self._model),
                )
        return iterator if self._goes_on(self.steps) else None
