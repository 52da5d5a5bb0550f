"""Learning rates of steps on torch, of which Keras may take several at once."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import keras

from ring_keras import keras_internals as internals
from ring_keras.backends.common.rates_under_way import rates_under_way
from ring_keras.callbacks.step_rates import StepRates

__all__ = ["TorchRates"]


class TorchRates(StepRates):
    """Sets the rate before each step, also within an execution."""

    def begin(self) -> None:
        """Has each step of this `fit` begin with its rate."""
        model = self.rule.model
        # Before Keras 3.16 an execution is a step.
        self.counts_batches = model.steps_per_execution > 1
        function = internals.train_function(model)
        if self.counts_batches and not isinstance(function, _RatedSteps):
            internals.set_train_function(model, _RatedSteps(model, function))

    def before_batch(self) -> None:
        """Sets the rate of a step that Keras tells callbacks of."""
        if not self.counts_batches:
            super().before_batch()

    def end(self) -> None:
        """Keras's train function is in its place again."""
        function = self.rule.model.train_function
        if isinstance(function, _RatedSteps):
            internals.set_train_function(self.rule.model, function.of_keras)

    def rated(self) -> None:
        """Sets the rate of the step that begins."""
        super().before_batch()
        self.rule.count_batch()


class _RatedSteps:
    """A train function in place of Keras's.

    Args:
        model: That is trained.
        of_keras: Its own one.
    """

    def __init__(self, model: keras.Model, of_keras: Any) -> None:
        self._model = weakref.ref(model)
        self.of_keras = of_keras

    def __call__(self, batches: Sequence[Any]) -> Any:
        """The logs of an execution, one step after the other."""
        model = self._model()
        assert model is not None  # It has this.
        rates = rates_under_way(model, TorchRates)
        logs: Any = {}
        for batch in batches:
            for one in rates:
                one.rated()
            logs = self.of_keras([batch])
        return logs
