"""What a training step changes, and how to take that and put it back."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from ring_keras import keras_internals as internals
from ring_keras.ops.shards import Shard, shard_of
from ring_keras.optimizers.common_variables import common_variables, common_weights
from ring_keras.optimizers.hooking import divisions_of
from ring_keras.states.weight_digests import variable_name
from ring_keras.training.distributed_models import is_local_in

__all__ = ["Array", "TrainedState", "digest"]

Array = np.ndarray[Any, Any]


class TrainedState:
    """The variables of a model and of its optimizers, once they are all there.

    Without those that each rank has its own of by intent, and without the state of
    random generators. What optimizers with `shard_state=True` keep comes last: this
    rank's part of it.

    Args:
        model: The model.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        is_local = is_local_in(model)
        self.weights = {variable_name(v) for v in common_weights(model, is_local)}
        """Names of those that are the model's own."""
        self._divided = divisions_of(internals.optimizers_of(model))
        parts = list(
            {
                id(part.variable): part.variable
                for division in self._divided
                for part in division.parts
            }.values()
        )
        keys = set(map(id, parts))
        common = [v for v in common_variables(model, is_local) if id(v) not in keys]
        self.common_count = len(common)
        """How many come first, of which all ranks have the same."""
        self._variables = [*common, *parts]
        self.names = [variable_name(variable) for variable in self._variables]
        self.dtypes = [str(variable.dtype) for variable in self._variables]

    @property
    def ready(self) -> bool:
        """Whether there are variables, and all have values."""
        return bool(self._variables) and all(
            bool(internals.tensorflow_variable(variable).is_initialized())
            for variable in self._variables
        )

    def values(self, before: Sequence[Array] | None = None) -> list[Array]:
        """Of each variable; the same array as `before` where it has not changed."""
        values = [np.asarray(variable.numpy()) for variable in self._variables]
        if before is None:
            return values
        return [
            old if np.array_equal(old, new, equal_nan=True) else new
            for old, new in zip(before, values, strict=True)
        ]

    def shards(self) -> dict[int, Shard]:
        """By their places: who has what of those that are divided."""
        found = enumerate(map(shard_of, self._variables))
        return {place: shard for place, shard in found if shard is not None}

    def make_whole(self) -> None:
        """In a job of one rank: makes what others have had, with values to come."""
        for division in self._divided:
            division.follow_ranks()
        self._variables = TrainedState(self._model)._variables

    def assign(self, values: Sequence[Array]) -> None:
        """Puts values back."""
        for variable, value in zip(self._variables, values, strict=True):
            variable.assign(value)
        internals.finalize_layers(self._variables)

    def clear_accumulators(self) -> None:
        """Begins to accumulate gradients anew."""
        optimizers = internals.optimizers_of(self._model)
        internals.clear_accumulators(internals.accumulators(optimizers))


def digest(value: Array) -> int:
    """The same for the same bits."""
    return zlib.crc32(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
