"""What the processes that a lost launcher has left say of the job's last generation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ring_keras.launch.elastic_socket import Tell
from ring_keras.launch.workers import Worker

__all__ = ["Found", "LastGeneration", "last_generation"]


@dataclass
class Found:
    """A process that another launcher has started.

    Attributes:
        worker: It.
        tell: Answers it.
        asks: Whether it has the state of the job, if it asks to join; None: it does
            not.
        place: What it was told of the generation that it was in last; None: it was
            in none.
    """

    worker: Worker
    tell: Tell
    asks: bool | None
    place: dict[str, Any] | None

    @property
    def generation(self) -> int:
        """In which it was last; 0: in none."""
        return 0 if self.place is None else int(self.place["generation"])

    @property
    def rank(self) -> int | None:
        """Which it was there."""
        return None if self.place is None else int(self.place["rank"])

    @property
    def has_state(self) -> bool:
        """Whether it has that of the job, unless it has taken it since."""
        return self.place is not None and not self.place["late"]


@dataclass(frozen=True)
class LastGeneration:
    """The one that was begun last.

    Attributes:
        number: Which; 0: none has begun yet.
        changes: How often the ranks had changed until then.
        started: How many processes the job has started, as far as is known.
        ranks: Which rank each process was to be there, by its number, whether it is
            among those that were found or not.
        members: Those that were found, in that order; if it is 0, all that shall be in
            the first.
        others: Those that were in an earlier one only, or in none.
    """

    number: int
    changes: int
    started: int
    ranks: Mapping[int, int]
    members: Sequence[Found]
    others: Sequence[Found]


def last_generation(found: Sequence[Found]) -> LastGeneration:
    """Finds it.

    The launcher may have been lost before it had told all who they are in it: who is
    there says one that was told.
    """
    number = max(one.generation for one in found)
    told = next(
        (one.place for one in found if number and one.generation == number), None
    )
    place = told or {"changes": 0, "started": 0, "members": []}
    ranks = {process: rank for rank, process in enumerate(place["members"])}
    members = [one for one in found if one.worker.rank in ranks or not number]
    members.sort(key=lambda one: (ranks.get(one.worker.rank, 0), one.worker.rank))
    return LastGeneration(
        number=number,
        changes=place["changes"],
        started=max(place["started"], *(1 + one.worker.rank for one in found)),
        ranks=ranks,
        members=members,
        others=[one for one in found if one not in members],
    )
