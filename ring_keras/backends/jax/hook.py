"""What an optimizer's hook is on JAX, where a step is traced with its weights."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax

from ring_keras import keras_internals as internals
from ring_keras.backends.common.hook import GradientHook, common_state
from ring_keras.backends.common.step import Step
from ring_keras.backends.jax.gradients import JaxReducer
from ring_keras.errors import RankMismatchError
from ring_keras.states.weight_digests import (
    differing,
    digests,
    gather_digests,
    variable_name,
)

__all__ = ["JaxHook"]


class JaxHook(GradientHook):
    """Traced into the step."""

    reducer = JaxReducer

    def begin_alike(self, variables: Sequence[Any]) -> None:
        """The values that a step has been given cannot be changed any more.

        Raises:
            RankMismatchError: On every rank, if they differ across ranks.
        """
        if self.have_begun(variables):
            return
        optimizer = self._own()
        is_local = self.options.is_local
        state = [
            *(variable for variable in variables if not is_local(variable)),
            *common_state([optimizer], variables, is_local),
        ]
        kept = [one for one in state if internals.has_array(one)]
        # Nothing is traced in a thread of its own: there variables have values. Signals
        # end the collective, which is in this one.
        with ThreadPoolExecutor(1) as beside:
            own = beside.submit(digests, kept).result()
        everyones = gather_digests(own, "keras/start", self.options.process_set)
        changing = differing(kept, everyones)
        if changing:
            raise RankMismatchError(
                "[RK663] before the first step of "
                f"{type(optimizer).__name__} the ranks' variables differ: "
                f"'{variable_name(changing[0])}'"
                f"{f' and {len(changing) - 1} more' if len(changing) > 1 else ''}. "
                "JAX has given the step their values already. Call "
                "ring_keras.broadcast_variables([*model.variables, "
                "*optimizer.variables]) before you take the values that the first step "
                "gets."
            )
        self.begun_alike(variables)

    def _reduced(
        self, gradients: list[Any], variables: list[Any], step: Step
    ) -> list[Any]:
        """Keras comes here in steps that only accumulate, too, on JAX."""
        optimizer = self._own()
        passes = optimizer.gradient_accumulation_steps
        if not passes:
            return self._reduced_but_local(gradients, variables, step)
        reduced: list[Any] = jax.lax.cond(
            internals.iterations(optimizer) % passes == passes - 1,
            lambda given: self._reduced_but_local(given, variables, step),
            list,
            list(gradients),
        )
        return reduced
