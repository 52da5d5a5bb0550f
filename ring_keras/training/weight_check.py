"""Compares what the ranks have trained, every so many steps."""

from collections.abc import Callable
from typing import Any

import keras

from ring_keras import keras_internals as internals
from ring_keras.job.process_set import ProcessSet
from ring_keras.optimizers.common_variables import common_variables, split_weights
from ring_keras.optimizers.meeting_hook import meeting_optimizers
from ring_keras.states.equal_weights import require_equal
from ring_keras.states.weight_digests import all_digests

__all__ = ["WeightCheck"]


class WeightCheck:
    """Of one call of `fit`, for RING_KERAS_CHECK_STEPS.

    Every update is the same on all ranks, so weights and the optimizer's state
    stay equal, bit for bit. What makes them differ otherwise is seen here: a fault
    of a rank's memory or device, or code that writes on one rank only.

    Args:
        model: What is trained.
        is_local: Says of a variable whether each rank has its own value of it.
        process_set: The ranks that train together.
        every: How many steps are between two comparisons.
    """

    def __init__(
        self,
        model: keras.Model,
        is_local: Callable[[Any], bool],
        process_set: ProcessSet,
        every: int,
    ) -> None:
        self._model = model
        self._is_local = is_local
        self._process_set = process_set
        self._every = every
        self._steps = 0
        self._is_due = False

    def count(self, steps: int) -> bool:
        """Counts steps that are done; whether it is time to compare.

        Where ranks train apart, it is when they have met.
        """
        compared = self._steps // self._every
        self._steps += steps
        self._is_due |= self._steps // self._every > compared
        if not self._is_due or any(
            optimizer.is_apart for optimizer in meeting_optimizers(self._model)
        ):
            return False
        self._is_due = False
        return True

    def compare(self) -> None:
        """Compares; collective.

        Raises:
            RankMismatchError: On every rank, if a variable differs by more than
                rounding.
        """
        variables = _updated_variables(self._model, self._is_local)
        digests = all_digests(variables, "fit/check", self._process_set)
        when = f"{self._steps} steps after its beginning"
        require_equal(variables, digests, when, self._process_set)


def _updated_variables(
    model: keras.Model, is_local: Callable[[Any], bool]
) -> list[Any]:
    """What only updates change, and all of them alike.

    That is not the state of layers, which ranks average once an epoch, nor what an
    optimizer keeps for the steps between two meetings.
    """
    of_layers, _ = split_weights(model, is_local)
    apart = [v for one in meeting_optimizers(model) for v in one.kept_apart]
    left_out = set(map(internals.variable_key, [*of_layers, *apart]))
    return [
        variable
        for variable in common_variables(model, is_local)
        if internals.variable_key(variable) not in left_out
    ]
