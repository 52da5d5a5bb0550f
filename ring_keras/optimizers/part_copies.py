"""Copies of the parts of a divided state: each is kept twice.

A rank that is lost takes its part of the state with it. So at each commit every rank
keeps a copy of its own part, and of the part of another rank, on another host where
there is one.

A commit counts once one rank has passed the barrier at its end. Then all ranks have
what it keeps, and hold on to what the commit before has kept until they have passed it
themselves. So whatever moment a rank is lost in, the others have parts of one moment.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import keras
import numpy as np

from ring_keras import _native
from ring_keras import keras_internals as internals
from ring_keras.job.job import current_job
from ring_keras.job.topology import rank, size
from ring_keras.optimizers.part_exchange import Key, Values, exchange, keepers_of
from ring_keras.optimizers.state_division import Part, StateDivision, dtype_of
from ring_keras.values.objects import allgather_object

__all__ = ["Copies", "PartCopies"]

_NO_GENERATION = -1


@dataclass(frozen=True)
class Copies:
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
    values: Mapping[Key, Values] = field(default_factory=dict)
    are_mixed: bool = False


class PartCopies:
    """Those of this rank.

    Args:
        optimizers: Those whose state is divided.
        divisions: How it is, of each.
    """

    def __init__(
        self,
        optimizers: Sequence[keras.optimizers.Optimizer],
        divisions: Sequence[StateDivision],
    ) -> None:
        self._optimizers = optimizers
        self._divisions = divisions
        self.committed: Copies | None = None
        # Of a commit that this rank has not passed.
        self._pending: Copies | None = None
        # Of this generation, by rank: the one that keeps a copy of its part.
        self._keepers: tuple[int, list[int]] = (_NO_GENERATION, [])

    @property
    def number(self) -> int:
        """That of the last commit that this rank has passed; 0 before the first."""
        return 0 if self.committed is None else self.committed.number

    @property
    def are_of_this_generation(self) -> bool:
        """Whether no rank was lost, and none came, since the last commit."""
        kept = self.committed
        return kept is not None and kept.generation == current_job().generation

    def begin(self) -> None:
        """Keeps this rank's part, if nothing has been committed yet."""
        if self.committed is None:
            self.committed = Copies(steps=self.steps(), values=self.own())

    def follow(self, number: int) -> None:
        """Goes on from the commit of that number, which all ranks have gone back to."""
        copies = self.usable().get(number)
        self.committed = copies or Copies(number, self.steps())
        self._pending = None

    def parts(self) -> list[tuple[Key, Part]]:
        """All ranks', in the same order on all of them."""
        return [
            (Key(place, part.number, part.piece.begin, part.piece.end), part)
            for place, division in enumerate(self._divisions)
            for part in division.parts
        ]

    def own(self) -> dict[Key, Values]:
        """This rank's, as they are now."""
        # As in `read_value`: a step writes elsewhere while they are kept.
        return {
            key: np.reshape(internals.tensorflow_variable(part.variable).numpy(), -1)
            for key, part in self.parts()
            if self._divisions[key.optimizer].has(part)
        }

    def steps(self) -> list[int]:
        """How many each optimizer has taken."""
        return [int(internals.steps_done(one)) for one in self._optimizers]

    def usable(self) -> dict[int, Copies]:
        """By number: copies of the steps that all have taken."""
        return {
            copies.number: copies
            for copies in (self.committed, self._pending)
            if copies is not None
            and (not copies.number or copies.steps == self.steps())
        }

    def commit(self, *, are_mixed: bool) -> None:
        """Keeps this rank's part, and another rank's; collective.

        Args:
            are_mixed: See `Copies`.

        Raises:
            PeerLostError: If a rank died or left. What was committed before is kept.
        """
        values = self.own()
        if size() > 1:
            values |= self._exchange_copies(values)
        self._pending = Copies(
            self.number + 1,
            self.steps(),
            current_job().generation,
            values,
            are_mixed,
        )
        if size() > 1:
            _native.barrier("elastic/parts/committed")
        self.committed, self._pending = self._pending, None

    def _exchange_copies(self, own: Mapping[Key, Values]) -> dict[Key, Values]:
        job = current_job()
        if self._keepers[0] != job.generation:
            hosts = allgather_object(job.host, name="elastic/parts/hosts")
            self._keepers = job.generation, keepers_of(hosts)
        _, keepers = self._keepers
        sent: list[list[Values]] = [[] for _ in keepers]
        sent[keepers[rank()]] = list(own.values())
        wanted = [
            [
                (key, dtype_of(part))
                for key, part in self.parts()
                if part.piece.owner == of and keeper == rank()
            ]
            for of, keeper in enumerate(keepers)
        ]
        return exchange(sent, wanted, "elastic/parts/kept")
