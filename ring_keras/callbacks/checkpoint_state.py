"""What a checkpoint has of a model, and which rank writes what."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from ring_keras import keras_internals as internals
from ring_keras.errors import RingKerasError
from ring_keras.job.process_set import ProcessSet
from ring_keras.ops.shards import shard_of
from ring_keras.optimizers.common_variables import common_variables, split_weights
from ring_keras.optimizers.even_pieces import balanced
from ring_keras.optimizers.meeting_hook import meeting_optimizers

__all__ = ["ModelState", "Writers", "refuse_ranks_apart"]


@dataclass(frozen=True)
class _Value:
    """One of the values that are saved.

    Attributes:
        variable: That has it now.
        dtype: Its name.
        shape: Where it is whole.
    """

    variable: Any
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * int(tf.as_dtype(self.dtype).size)


class ModelState:
    """All that is saved of a model: what Keras saves, and what each rank draws.

    And what optimizers have that Keras leaves out.

    Values have numbers, in an order that is the same on all ranks and in every process
    that makes the model.

    Args:
        model: One that is built, with its optimizers.

    Raises:
        RingKerasError: If something in it saves what is no variable.
    """

    def __init__(self, model: keras.Model) -> None:
        self.values: list[_Value] = []
        """By their numbers."""
        self.groups = internals.file_groups(model)
        """What Keras saves, the numbers in place of the values."""
        self._numbers: dict[Any, int] = {}
        for group in self.groups:
            for name, value in group.values.items():
                if not internals.is_variable(value):
                    raise _no_variable(group, name, value)
                group.values[name] = self._number(value)
        for variable in (
            *internals.seed_states(model),
            *internals.recurrent_states(model),
        ):
            self._number(variable)
        unfiled = internals.unfiled_state(internals.optimizers_of(model))
        self.unfiled = [self._number(variable) for variable in unfiled.values()]
        """The numbers of what optimizers have, and Keras does not save."""

    def _number(self, variable: Any) -> int:
        key = internals.variable_key(variable)
        if key not in self._numbers:
            self._numbers[key] = len(self.values)
            shard = shard_of(variable)
            shape = tuple(variable.shape) if shard is None else shard.shape
            dtype = tf.as_dtype(variable.dtype).base_dtype.name
            self.values.append(_Value(variable, dtype, tuple(map(int, shape))))
        return self._numbers[key]

    def numbers_of(self, variables: Iterable[Any]) -> set[int]:
        """Of those of these variables that are saved."""
        keys = map(internals.variable_key, variables)
        return {self._numbers[key] for key in keys if key in self._numbers}

    def described(self) -> dict[str, Any]:
        """In plain values, for a record."""
        return {
            "groups": [[g.path, g.metadata, g.values] for g in self.groups],
            "values": [[value.dtype, list(value.shape)] for value in self.values],
        }

    def difference(self, described: dict[str, Any]) -> str:
        """How this differs from what has been described; empty if it does not."""
        ours = self.described()
        for (path, _, names), (its_path, _, its_names) in zip(
            ours["groups"], described["groups"], strict=False
        ):
            if path != its_path or names != its_names:
                return (
                    f"'{its_path or 'the model'}' was saved, and here is '{path}'"
                    + (f" with {len(names)} variables in place of {len(its_names)}")
                )
        if len(ours["groups"]) != len(described["groups"]):
            return (
                f"{len(described['groups'])} layers and optimizers were saved, and "
                f"here are {len(ours['groups'])}"
            )
        for value, its in zip(self.values, described["values"], strict=False):
            if [value.dtype, list(value.shape)] != its:
                name = getattr(value.variable, "path", value.variable.name)
                return (
                    f"{its[0]} of shape {tuple(its[1])} was saved for '{name}', which "
                    f"is {value.dtype} of shape {value.shape}"
                )
        if len(self.values) != len(described["values"]):
            return (
                f"{len(described['values'])} variables were saved, and here are "
                f"{len(self.values)}"
            )
        return ""


class Writers:
    """Which rank writes which values.

    What all ranks have the same of, one rank writes, so that each has about as many
    bytes. What a rank has of a divided state, that rank writes. The rest each rank
    has its own of, and writes: moving statistics in the middle of an epoch, gradients
    that it adds up, random generators.

    Args:
        state: What is saved.
        model: The model.
        is_local: Whether each rank has its own value of a weight, by intent.
        process_set: The ranks that train together.

    Raises:
        RingKerasError: If there are such weights.
    """

    def __init__(
        self,
        state: ModelState,
        model: keras.Model,
        is_local: Callable[[Any], bool],
        process_set: ProcessSet,
    ) -> None:
        local = [v for v in model.weights if is_local(v)]
        if local:
            raise RingKerasError(
                "[RK516] "
                "ring_keras.callbacks.Checkpoint saves what the ranks have in common, "
                "and each rank trains its own "
                f"'{getattr(local[0], 'path', local[0].name)}' (local_layers or "
                "local_variables). Save on each rank, to a path of its own, by "
                "model.save()."
            )
        changing, _ = split_weights(model, is_local)
        common = state.numbers_of(common_variables(model)) - state.numbers_of(changing)
        numbers = sorted(common)
        sizes = [state.values[number].nbytes for number in numbers]
        places = balanced(sizes, process_set.size())
        self._places = {n: {p} for n, p in zip(numbers, places, strict=True)}
        self.cut: dict[int, list[int]] = {}
        """By the numbers of what ranks have pieces of: the places of these ranks, in
        the order of the pieces."""
        for number, value in enumerate(state.values):
            shard = shard_of(value.variable)
            if shard is None:
                continue
            own = [process_set.position_of(piece.owner) for piece in shard.pieces]
            self._places[number] = set(own)
            if shard.is_cut:
                self.cut[number] = own
        self.own = [n for n in range(len(state.values)) if n not in self._places]
        """The numbers of what each rank has its own of."""

    def written_by(self, place: int) -> list[int]:
        """The numbers of what the rank at that place among the others writes."""
        its = [number for number, its in self._places.items() if place in its]
        return sorted([*its, *self.own])


def refuse_ranks_apart(model: keras.Model) -> None:
    """Raises where each rank has a model of its own, between two meetings.

    Raises:
        RingKerasError: If so.
    """
    for optimizer in meeting_optimizers(model):
        raise RingKerasError(
            "[RK516] "
            "ring_keras.callbacks.Checkpoint saves what the ranks have in common, and "
            f"with optimizer '{optimizer.name}' they train apart (sync_every): each "
            "has weights and a state of its own. Use ring_keras.callbacks.Preemption, "
            "with which each rank saves its own."
        )


def _no_variable(
    group: internals.FileGroup, name: str, value: object
) -> RingKerasError:
    return RingKerasError(
        "[RK516] "
        "ring_keras.callbacks.Checkpoint copies variables between two steps, but "
        f"'{(group.metadata or {}).get('name') or group.path}' saves something else as "
        f"'{name}', of {type(value).__name__}: its save_own_variables() computes it. "
        "Save this model by keras.callbacks.ModelCheckpoint."
    )
