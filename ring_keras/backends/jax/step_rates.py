"""Learning rates of steps on JAX, which are functions of the model's state."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import keras
import numpy as np

from ring_keras import keras_internals as internals
from ring_keras.backends.common.rates_under_way import rates_under_way
from ring_keras.backends.jax.ranks_fit import JaxFit
from ring_keras.callbacks.step_rates import StepRates
from ring_keras.keras_internals import calls

__all__ = ["JaxRates"]


class JaxRates(StepRates):
    """Puts the rate into the state that a step is given.

    Within an epoch variables have no values. To give them theirs, and take them again,
    before each step would take longer than many a step.
    """

    counts_batches = True

    def begin(self) -> None:
        """Has each step of this `fit` begin with its rate.

        Raises:
            ValueError: If an optimizer's variables are not in the state.
        """
        model = self.rule.model
        self._places = {id(v): n for n, v in enumerate(model.optimizer.variables)}
        for optimizer in self.rule.optimizers:
            if id(optimizer.learning_rate) not in self._places:
                raise ValueError(
                    f"[RK621] {type(self.rule).__name__} sets the learning rate, but "
                    "on Keras's back end jax a step has the variables of the model's "
                    "compiled optimizer alone, and "
                    f"'{optimizer.name}' is not in that. Give the optimizers of a "
                    "model to compile() as a keras.optimizers.MultiOptimizer."
                )
        ranks_fit = JaxFit.of(model)
        if isinstance(ranks_fit, JaxFit):
            ranks_fit.before_steps.append(self.rated)
            return
        run = calls.calling_run(model)
        assert run is not None
        internals.hand_out_batches_singly(run.epoch_iterator)
        function = internals.train_function(model)
        if not isinstance(function, _RatedSteps):
            steps = _RatedSteps(model, function, internals.one_step_function(model))
            internals.set_train_function(model, steps)

    def before_batch(self) -> None:
        """Nothing: a callback that came here would be followed by others."""

    def end(self) -> None:
        """Keras's train function is in its place again."""
        function = self.rule.model.train_function
        if isinstance(function, _RatedSteps):
            internals.set_train_function(self.rule.model, function.of_keras)

    def rated(self, state: Any) -> Any:
        """The state with which the next step begins."""
        trained, others, of_optimizer, of_metrics = state
        counts = [
            int(of_optimizer[self._places[id(internals.iterations(optimizer))]])
            for optimizer in self.rule.optimizers
        ]
        rate = self.rule.learning_rate_at(self.rule.steps_taken(counts))
        self.rule.count_batch()
        if rate is None:
            return state
        values = list(of_optimizer)
        for optimizer in self.rule.optimizers:
            self._set_in(values, optimizer, rate)
        return trained, others, values, of_metrics

    def _set_in(
        self, values: list[Any], optimizer: keras.optimizers.Optimizer, rate: float
    ) -> None:
        place = self._places[id(optimizer.learning_rate)]
        before = float(values[place])
        if np.float32(rate) == before:
            return
        # Of the same type, or the step would be compiled again.
        values[place] = jnp.asarray(rate, values[place].dtype)
        if not self.rule.momentum_correction or before <= 0.0:
            return
        for velocity in internals.velocities(optimizer):
            place = self._places[id(velocity)]
            factor = jnp.asarray(rate / before, values[place].dtype)
            values[place] = values[place] * factor


class _RatedSteps:
    """A train function in place of Keras's, where no other ranks train the model.

    Args:
        model: That is trained.
        of_keras: Its own one, which may take several steps.
        of_one_step: One that does not.
    """

    def __init__(self, model: keras.Model, of_keras: Any, of_one_step: Any) -> None:
        self._model = weakref.ref(model)
        self.of_keras = of_keras
        self._of_one_step = of_one_step

    def __call__(self, state: Any, iterator: Iterator[Any]) -> tuple[Any, Any]:
        """The logs and the state after an execution, one step after the other."""
        model = self._model()
        assert model is not None  # It has this.
        rates = rates_under_way(model, JaxRates)
        if not rates:
            result: tuple[Any, Any] = self.of_keras(state, iterator)
            return result
        logs: Any = {}
        for number in range(model.steps_per_execution):
            # The first one ends the epoch where there is none.
            batch = next(iterator) if not number else next(iterator, None)
            if batch is None:
                break
            for one in rates:
                state = one.rated(state)
            logs, state = self._of_one_step(state, iter([batch]))
        return logs, state
