"""A divided state that outlives its ranks: each part is kept twice, and divided anew.

A rank that is lost takes its part of the state with it. So at each commit every rank
keeps a copy of its own part, and of the part of another rank, on another host where
there is one. When the ranks have changed, each takes what it is to have from the rank
that had it, or from the one that has the copy.

A commit counts once one rank has passed the barrier at its end. Then all ranks have
what it keeps, and hold on to what the commit before has kept until they have passed it
themselves. So whatever moment a rank is lost in, the others have parts of one moment.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from ring_keras import _native
from ring_keras import keras_internals as internals
from ring_keras.errors import RingKerasError
from ring_keras.job.job import current_job
from ring_keras.job.process_set import global_process_set
from ring_keras.job.topology import rank, size
from ring_keras.optimizers.optimizer_hook import OptimizerHook
from ring_keras.optimizers.sharded_state import (
    Part,
    ShardedState,
    parts_of_different_states,
)
from ring_keras.optimizers.update_hook import UpdateHook
from ring_keras.values.objects import allgather_object

__all__ = ["KeptParts", "keepers_of"]

_Values: TypeAlias = npt.NDArray[Any]
# Which optimizer, and which of its parts.
_Key: TypeAlias = tuple[int, int]

_NO_GENERATION = -1


@dataclass(frozen=True)
class _Copies:
    """What a rank has kept in one commit.

    Attributes:
        number: The commit's, the same on all ranks.
        steps: How many each optimizer had taken.
        generation: Of the job, at that time.
        values: Copies of its part, and of another rank's.
        are_mixed: Whether parts were of other steps than the variables that all have.
    """

    number: int = 0
    steps: list[int] = field(default_factory=list)
    generation: int = _NO_GENERATION
    values: Mapping[_Key, _Values] = field(default_factory=dict)
    are_mixed: bool = False


class KeptParts:
    """The parts of what optimizers with `shard_state=True` keep; empty without any.

    Args:
        optimizers: All that train together, or others around them.

    Raises:
        ValueError: If a state is divided among some of the ranks only.
    """

    def __init__(self, optimizers: Iterable[keras.optimizers.Optimizer]) -> None:
        self._optimizers: list[keras.optimizers.Optimizer] = []
        self._states: list[ShardedState] = []
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
                self._states.append(hook.sharded)
        self._committed: _Copies | None = None
        # Of a commit that this rank has not passed.
        self._pending: _Copies | None = None
        # Whether this rank's part was compared with its copy since the last commit, and
        # was another one.
        self._is_compared = self._has_changed = False
        # Of this generation, by rank: the one that keeps a copy of its part.
        self._keepers: tuple[int, list[int]] = (_NO_GENERATION, [])
        self._are_mixed = False

    def __bool__(self) -> bool:
        return bool(self._states)

    @property
    def number(self) -> int:
        """That of the last commit that this rank has passed; 0 before the first."""
        return 0 if self._committed is None else self._committed.number

    def own_variables(self) -> list[Any]:
        """Those that this rank has, and others have not."""
        if not self._states or size() == 1:
            return []
        return [
            part.variable
            for state in self._states
            for part in state.parts
            if state.has(part)
        ]

    def follow_ranks(self) -> bool:
        """Builds the optimizers for the ranks that there are now.

        Before `divide`, when variables are what they were at the last commit.

        Returns:
            Whether their variables are others now.
        """
        if not self._states or self._is_of_this_generation():
            return False
        if self._committed is None:
            self._committed = _Copies(steps=self._steps(), values=self._own())
        elif not self._is_compared:
            own = self._own()
            kept = self._committed.values
            self._has_changed = any(
                not _same(own[key], kept[key]) for key in own.keys() & kept.keys()
            )
        self._is_compared = True
        followed = [state.follow_ranks() for state in self._states]
        return any(followed)

    def divide(self) -> None:
        """Gives each rank its part of what was committed last; collective.

        After `follow_ranks`, when all ranks have taken the same steps.

        Raises:
            RingKerasError: On all ranks, if a part is gone.
        """
        if not self._states:
            return
        if self._committed is None:
            self._committed = _Copies(steps=self._steps(), values=self._own())
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
        holders = self._holders(everyones, number)
        copies = self._usable().get(number)
        values = {} if copies is None else dict(copies.values)
        wanted: list[dict[_Key, Part]] = [{} for _ in everyones]
        given: list[dict[_Key, Part]] = [{} for _ in everyones]
        for key, part in self._parts():
            holding = holders[key]
            if part.owner in holding or not holding:  # Not: as new, on all ranks.
                continue
            if part.owner == rank():
                wanted[holding[0]][key] = part
            if holding[0] == rank():
                given[part.owner][key] = part
        sent = [[values[key] for key in its] for its in given]
        values |= _exchange(sent, wanted, "elastic/parts/divided")
        for key, part in self._parts():
            if part.owner == rank() and holders[key]:
                part.variable.assign(values[key])
        # Copies of others' parts stay, until all have copies of the new ones.
        self._committed = copies or _Copies(number, self._steps())
        self._pending = None

    def note_loaded(self) -> None:
        """Every rank has loaded its part of the state whose steps all have taken."""
        self._are_mixed = False

    def require_one_state(self) -> None:
        """Raises where parts are of other steps than what all have; collective.

        Raises:
            RankMismatchError: On all ranks.
        """
        if not self._states:
            return
        own = np.array([[self._are_mixed]], np.int64)
        mixed = _native.allgather(own, "elastic/parts/mixed")[:, 0]
        if mixed.any():
            raise parts_of_different_states(
                f"rank {int(mixed.argmax())} has not taken the steps of the rank whose "
                f"variables all begin with, which are {max(self._steps())}"
            )

    def commit(self) -> None:
        """Keeps this rank's part, and another rank's; collective.

        Raises:
            PeerLostError: If a rank died or left. What was committed before is kept.
            RingKerasError: If the state was not divided for the ranks that there are.
        """
        if not self._states:
            return
        for state in self._states:
            state.require_same_ranks()
        values = self._own()
        if size() > 1:
            values |= self._exchange_copies(values)
        self._pending = _Copies(
            self.number + 1,
            self._steps(),
            current_job().generation,
            values,
            self._are_mixed,
        )
        if size() > 1:
            _native.barrier("elastic/parts/committed")
        self._committed, self._pending = self._pending, None
        self._is_compared = self._has_changed = False

    def _exchange_copies(self, own: Mapping[_Key, _Values]) -> dict[_Key, _Values]:
        job = current_job()
        if self._keepers[0] != job.generation:
            hosts = allgather_object(job.host, name="elastic/parts/hosts")
            self._keepers = job.generation, keepers_of(hosts)
        _, keepers = self._keepers
        sent: list[list[_Values]] = [[] for _ in keepers]
        sent[keepers[rank()]] = list(own.values())
        wanted = [
            {
                key: part
                for key, part in self._parts()
                if part.owner == of and keeper == rank()
            }
            for of, keeper in enumerate(keepers)
        ]
        return _exchange(sent, wanted, "elastic/parts/kept")

    def _parts(self) -> list[tuple[_Key, Part]]:
        return [
            ((place, index), part)
            for place, state in enumerate(self._states)
            for index, part in enumerate(state.parts)
        ]

    def _own(self) -> dict[_Key, _Values]:
        # As in `read_value`: a step writes elsewhere while they are kept.
        return {
            key: np.asarray(internals.tensorflow_variable(part.variable).numpy())
            for key, part in self._parts()
            if self._states[key[0]].has(part)
        }

    def _steps(self) -> list[int]:
        return [int(internals.steps_done(one)) for one in self._optimizers]

    def _is_of_this_generation(self) -> bool:
        kept = self._committed
        return kept is not None and kept.generation == current_job().generation

    def _usable(self) -> dict[int, _Copies]:
        """By number: copies of the steps that all have taken."""
        return {
            copies.number: copies
            for copies in (self._committed, self._pending)
            if copies is not None
            and (not copies.number or copies.steps == self._steps())
        }

    def _described(self) -> dict[str, Any]:
        """What the others must know of this rank."""
        usable = self._usable()
        return {
            "number": self.number,
            "is_of_this_generation": self._is_of_this_generation(),
            "has_changed": self._has_changed,
            "mixed": [
                number
                for number, copies in usable.items()
                if copies.are_mixed or copies.steps != self._steps()
            ],
            "kept": [
                [number, list(map(list, copies.values))]
                for number, copies in usable.items()
            ],
            "is_new": not any(self._steps())
            and all(
                _is_constant(value)
                for values in [self._own(), *(c.values for c in usable.values())]
                for value in values.values()
            ),
        }

    def _holders(
        self, everyones: Sequence[Mapping[str, Any]], number: int
    ) -> dict[_Key, list[int]]:
        """By part: the ranks that have it; none, if it is still as it was built."""
        holders: dict[_Key, list[int]] = {key: [] for key, _ in self._parts()}
        for of, theirs in enumerate(everyones):
            for place, index in dict(theirs["kept"]).get(number, ()):
                holders[place, index].append(of)
        is_new = number == 0 and all(theirs["is_new"] for theirs in everyones)
        for (place, index), holding in holders.items():
            if holding or is_new:
                continue
            variable = self._states[place].parts[index].variable
            raise _gone(
                f"'{getattr(variable, 'path', variable.name)}' of optimizer "
                f"'{self._optimizers[place].name}' was kept by two ranks, and both are "
                "lost"
                if number
                else f"optimizer '{self._optimizers[place].name}' had a state before, "
                "and a rank was lost before the ranks had copies of it"
            )
        return holders


def _gone(why: str) -> RingKerasError:
    return RingKerasError(
        "[RK828] "
        "ranks were lost, and with them a part of what an optimizer with "
        f"shard_state=True keeps, as it was at the last commit: {why}. Training ends "
        "here, on all ranks. Start the job again from a checkpoint, such as those of "
        "ring_keras.callbacks.Checkpoint."
    )


def keepers_of(hosts: Sequence[str]) -> list[int]:
    """By rank: who keeps a copy of its part; on the next host, if there are several."""
    ranks_of: dict[str, list[int]] = {}
    for of, host in enumerate(hosts):
        ranks_of.setdefault(host, []).append(of)
    if len(ranks_of) == 1:
        return [(of + 1) % len(hosts) for of in range(len(hosts))]
    names = list(ranks_of)
    keepers = []
    for of, host in enumerate(hosts):
        there = ranks_of[names[(names.index(host) + 1) % len(names)]]
        keepers.append(there[ranks_of[host].index(of) % len(there)])
    return keepers


def _exchange(
    sent: Sequence[Sequence[_Values]],
    wanted: Sequence[Mapping[_Key, Part]],
    name: str,
) -> dict[_Key, _Values]:
    """Has ranks send each other parts, which both sides know; collective.

    Args:
        sent: By rank, to which.
        wanted: By rank, from which, in the order in which that one sends them.
        name: The request's.
    """
    rows = [sum(value.nbytes for value in its) for its in sent]
    flat = [_bytes(value) for its in sent for value in its]
    array = np.concatenate(flat) if flat else np.zeros(0, np.uint8)
    received, _ = _native.alltoall(array, rows, name)
    found: dict[_Key, _Values] = {}
    begin = 0
    for key, part in (item for its in wanted for item in its.items()):
        dtype = np.dtype(tf.as_dtype(part.variable.dtype).as_numpy_dtype)
        end = begin + int(np.prod(part.shape, dtype=np.int64)) * dtype.itemsize
        found[key] = received[begin:end].view(dtype).reshape(part.shape)
        begin = end
    return found


def _bytes(value: _Values) -> npt.NDArray[np.uint8]:
    return np.ascontiguousarray(value).reshape(-1).view(np.uint8)


def _same(one: _Values, other: _Values) -> bool:
    return np.array_equal(_bytes(one), _bytes(other))


def _is_constant(value: _Values) -> bool:
    return value.size == 0 or bool((value == value.flat[0]).all())
