"""A divided state that outlives its ranks: parts are kept twice, and divided anew.

When the ranks have changed, each takes what it is to have from the rank that had it, or
from the one that has the copy.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from ring_keras import _native
from ring_keras import keras_internals as internals
from ring_keras.errors import RingKerasError
from ring_keras.job.process_set import global_process_set
from ring_keras.job.topology import rank, size
from ring_keras.optimizers.optimizer_hook import OptimizerHook
from ring_keras.optimizers.part_copies import PartCopies
from ring_keras.optimizers.part_exchange import (
    Key,
    Values,
    exchange,
    same_bits,
    sources,
)
from ring_keras.optimizers.parts_of_one_state import (
    note_loaded,
    parts_of_different_states,
)
from ring_keras.optimizers.state_division import Part, StateDivision, dtype_of
from ring_keras.optimizers.update_hook import UpdateHook
from ring_keras.values.objects import allgather_object

__all__ = ["KeptParts"]


class KeptParts:
    """The parts of what optimizers with `shard_state=True` keep; empty without any.

    Args:
        optimizers: All that train together, or others around them.

    Raises:
        ValueError: If a state is divided among some of the ranks only.
    """

    def __init__(self, optimizers: Iterable[keras.optimizers.Optimizer]) -> None:
        self._optimizers: list[keras.optimizers.Optimizer] = []
        self._divisions: list[StateDivision] = []
        for optimizer in internals.innermost(optimizers):
            hook = OptimizerHook.of(optimizer)
            if isinstance(hook, UpdateHook) and hook.sharded is not None:
                if hook.process_set is not global_process_set:
                    raise ValueError(
                        "[RK831] "
                        "an elastic job divides the state of an optimizer with "
                        "shard_state=True among all of its ranks. Leave out one of "
                        "process_set and shard_state. Received: "
                        f"process_set={hook.process_set}"
                    )
                self._optimizers.append(optimizer)
                self._divisions.append(hook.sharded.division)
        self._copies = PartCopies(self._optimizers, self._divisions)
        # Whether this rank's part was compared with its copy since the last commit, and
        # was another one.
        self._is_compared = self._has_changed = False
        self._are_mixed = False

    def __bool__(self) -> bool:
        return bool(self._divisions)

    @property
    def number(self) -> int:
        """That of the last commit that this rank has passed; 0 before the first."""
        return self._copies.number

    def own_variables(self) -> list[Any]:
        """Those that this rank has, and others have not."""
        if not self._divisions or size() == 1:
            return []
        return [
            part.variable
            for division in self._divisions
            for part in division.parts
            if division.has(part)
        ]

    def follow_ranks(self) -> bool:
        """Builds the optimizers for the ranks that there are now.

        Before `divide`, when variables are what they were at the last commit.

        Returns:
            Whether their variables are others now.
        """
        if not self._divisions or self._copies.are_of_this_generation:
            return False
        kept = self._copies.committed
        if kept is None:
            self._copies.begin()
        elif not self._is_compared:
            own = self._copies.own()
            self._has_changed = any(
                not same_bits(own[key], kept.values[key])
                for key in own.keys() & kept.values.keys()
            )
        self._is_compared = True
        followed = [division.follow_ranks() for division in self._divisions]
        return any(followed)

    def divide(self) -> None:
        """Gives each rank its part of what was committed last; collective.

        After `follow_ranks`, when all ranks have taken the same steps.

        Raises:
            RingKerasError: On all ranks, if a part is gone.
        """
        if not self._divisions:
            return
        self._copies.begin()
        everyones = allgather_object(self._described(), name="elastic/parts")
        number = max(theirs["number"] for theirs in everyones)
        if all(theirs["is_of_this_generation"] for theirs in everyones):
            return  # Nobody was lost, and each has its part.
        self._are_mixed = any(number in theirs["mixed"] for theirs in everyones)
        for of, theirs in enumerate(everyones):
            if theirs["has_changed"]:
                raise _gone(
                    f"rank {of}'s part was changed after that, outside of a step"
                )
        found = self._sources(everyones, number)
        copies = self._copies.usable().get(number)
        kept = {} if copies is None else dict(copies.values)
        wanted: list[list[tuple[Key, Any]]] = [[] for _ in everyones]
        sent: list[list[Values]] = [[] for _ in everyones]
        for part, its in found:
            for holder, held, key in its:
                if holder == part.piece.owner:
                    continue
                if part.piece.owner == rank():
                    wanted[holder].append((key, dtype_of(part)))
                if holder == rank():
                    sent[part.piece.owner].append(key.of(held, kept[held]))
        given = exchange(sent, wanted, "elastic/parts/divided")
        for part, its in found:
            if part.piece.owner == rank() and its:
                values = [
                    key.of(held, kept[held]) if holder == rank() else given[key]
                    for holder, held, key in its
                ]
                part.variable.assign(np.concatenate(values).reshape(part.shape))
        note_loaded(self._optimizers, 0)
        # Copies of others' parts stay, until all have copies of the new ones.
        self._copies.follow(number)

    def note_loaded(self) -> None:
        """Every rank has loaded its part of the state whose steps all have taken."""
        self._are_mixed = False

    def require_one_state(self) -> None:
        """Raises where parts are of other steps than what all have; collective.

        Raises:
            RankMismatchError: On all ranks.
        """
        if not self._divisions:
            return
        own = np.array([[self._are_mixed]], np.int64)
        mixed = _native.allgather(own, "elastic/parts/mixed")[:, 0]
        if mixed.any():
            raise parts_of_different_states(
                f"rank {int(mixed.argmax())} has not taken the steps of the rank whose "
                f"variables all begin with, which are {max(self._copies.steps())}"
            )

    def commit(self) -> None:
        """Keeps this rank's part, and another rank's; collective.

        Raises:
            PeerLostError: If a rank died or left. What was committed before is kept.
            RingKerasError: If the state was not divided for the ranks that there are.
        """
        if not self._divisions:
            return
        for division in self._divisions:
            division.require_same_ranks()
        self._copies.commit(are_mixed=self._are_mixed)
        self._is_compared = self._has_changed = False

    def _described(self) -> dict[str, Any]:
        """What the others must know of this rank."""
        usable = self._copies.usable()
        return {
            "number": self.number,
            "is_of_this_generation": self._copies.are_of_this_generation,
            "has_changed": self._has_changed,
            "mixed": [
                number
                for number, copies in usable.items()
                if copies.are_mixed or copies.steps != self._copies.steps()
            ],
            "kept": [
                [number, list(map(list, copies.values))]
                for number, copies in usable.items()
            ],
            "is_new": not any(self._copies.steps())
            and all(
                _is_constant(value)
                for values in [self._copies.own(), *(c.values for c in usable.values())]
                for value in values.values()
            ),
        }

    def _sources(
        self, everyones: Sequence[Mapping[str, Any]], number: int
    ) -> list[tuple[Part, list[tuple[int, Key, Key]]]]:
        """By part: see `sources`; nothing, if it is still as it was built."""
        held = [
            [Key(*key) for key in dict(theirs["kept"]).get(number, ())]
            for theirs in everyones
        ]
        is_new = number == 0 and all(theirs["is_new"] for theirs in everyones)
        found = []
        for key, part in self._copies.parts():
            its = sources(key, held, part.piece.owner)
            if its is None and not is_new:
                raise self._lost(key, part, number)
            found.append((part, its or []))
        return found

    def _lost(self, key: Key, part: Part, number: int) -> RingKerasError:
        variable = part.variable
        return _gone(
            f"'{getattr(variable, 'path', variable.name)}' of optimizer "
            f"'{self._optimizers[key.optimizer].name}' was kept by two ranks, and both "
            "are lost"
            if number
            else f"optimizer '{self._optimizers[key.optimizer].name}' had a state "
            "before, and a rank was lost before the ranks had copies of it"
        )


def _gone(why: str) -> RingKerasError:
    return RingKerasError(
        "[RK828] "
        "ranks were lost, and with them a part of what an optimizer with "
        f"shard_state=True keeps, as it was at the last commit: {why}. Training ends "
        "here, on all ranks. Start the job again from a checkpoint, such as those of "
        "ring_keras.callbacks.Checkpoint."
    )


def _is_constant(value: Values) -> bool:
    return value.size == 0 or bool((value == value.flat[0]).all())
