"""What one rank did in a span of steps: the row that it sends to the others."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from ring_keras.monitoring.links import Link, sums_of_links

__all__ = ["Row", "Update", "waited_for_by_rank"]

# Sums over the steps of the row, in the order of `ring.stats()`.
_SUMS = (
    "steps",
    "duration_s",
    "input_s",
    "compute_s",
    "wait_s",
    "exposed_s",
    "overlap_s",
    "bytes",
    "collectives",
    "examples",
)
# A rank that was waited for less than that, in a step, is not worth a word.
_LEAST_WAIT_S = 1e-6


@dataclasses.dataclass(frozen=True)
class Row:
    """Sums over some steps of one rank.

    Attributes:
        rank: In the whole job.
        host: Its name.
        steps: How many there were.
        duration_s: Seconds, as all that end so; input, compute, wait and exposed
            together.
        input_s: Blocked in the data's iterator.
        compute_s: The rest.
        wait_s: Stood still until the last rank arrived.
        exposed_s: Stood still while bytes moved.
        overlap_s: Bytes moved while it computed.
        bytes: Given to collectives.
        collectives: How many.
        examples: Trained on; 0 where unknown.
        waited_for_s: How long it waited for others, by their rank; those that it did
            not wait for are left out.
        links: What it sent over TCP.
    """

    rank: int
    host: str
    steps: int = 0
    duration_s: float = 0.0
    input_s: float = 0.0
    compute_s: float = 0.0
    wait_s: float = 0.0
    exposed_s: float = 0.0
    overlap_s: float = 0.0
    bytes: int = 0
    collectives: int = 0
    examples: int = 0
    waited_for_s: Mapping[int, float] = dataclasses.field(default_factory=dict)
    links: tuple[Link, ...] = ()

    @property
    def examples_per_s(self) -> float:
        """While it trained: what lies between the steps, such as validation, is not in.

        0 where the number of examples is unknown.
        """
        return self.examples / self.duration_s if self.duration_s > 0 else 0.0

    @classmethod
    def between(cls, rank: int, host: str, earlier: Any, later: Any) -> Row:
        """The difference of two `totals` of `ring.stats()`; `earlier` may be None."""
        sums = {
            name: getattr(later, name) - (getattr(earlier, name) if earlier else 0)
            for name in _SUMS
        }
        before = earlier.waited_for_s if earlier else ()
        waits = {
            other: seconds - (before[other] if other < len(before) else 0.0)
            for other, seconds in enumerate(later.waited_for_s)
        }
        least_s = _LEAST_WAIT_S * max(sums["steps"], 1)
        waits = {other: s for other, s in waits.items() if s >= least_s}
        return cls(rank, host, **sums, waited_for_s=waits)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Row:
        """What `to_json` gave."""
        waits = {int(rank): s for rank, s in content["waited_for_s"]}
        links = tuple(Link(content["rank"], *link) for link in content["links"])
        return cls(**{**content, "waited_for_s": waits, "links": links})

    def to_json(self) -> dict[str, Any]:
        """Plain values; six digits are more than a clock's worth."""
        return {
            "rank": self.rank,
            "host": self.host,
            **{name: _short(getattr(self, name)) for name in _SUMS},
            "waited_for_s": [[r, _short(s)] for r, s in self.waited_for_s.items()],
            "links": [
                [link.receiver, link.bytes, _short(link.busy_s)] for link in self.links
            ],
        }

    def plus(self, other: Row) -> Row:
        """Both spans together; of the same rank."""
        waits = dict(self.waited_for_s)
        for rank, seconds in other.waited_for_s.items():
            waits[rank] = waits.get(rank, 0.0) + seconds
        sums = {name: getattr(self, name) + getattr(other, name) for name in _SUMS}
        links = sums_of_links([*self.links, *other.links])
        return dataclasses.replace(other, **sums, waited_for_s=waits, links=links)


@dataclasses.dataclass(frozen=True)
class Update:
    """The rows of all ranks for the same steps.

    Attributes:
        step: The number of the last one, as TensorBoard's axis has it.
        time: Unix time at its end, in seconds.
        rows: In the order of ranks.
    """

    step: int
    time: float
    rows: tuple[Row, ...]

    @property
    def steps(self) -> int:
        """How many it covers."""
        return max((row.steps for row in self.rows), default=0)

    @property
    def links(self) -> tuple[Link, ...]:
        """Those of all ranks."""
        return tuple(link for row in self.rows for link in row.links)

    @classmethod
    def from_json(cls, step: int, time: float, content: Iterable[Any]) -> Update:
        """What `to_json` gave."""
        return cls(step, time, tuple(map(Row.from_json, content)))

    def to_json(self) -> list[Any]:
        """Its rows."""
        return [row.to_json() for row in self.rows]

    def plus(self, later: Update) -> Update:
        """Both together, at the later one's end."""
        before = {row.rank: row for row in self.rows}
        rows = (
            before[row.rank].plus(row) if row.rank in before else row
            for row in later.rows
        )
        return Update(later.step, later.time, tuple(rows))


def waited_for_by_rank(rows: Iterable[Row]) -> dict[int, float]:
    """Seconds that the others waited for each rank, on average over the others."""
    rows = tuple(rows)
    others = max(len(rows) - 1, 1)
    waited = {row.rank: 0.0 for row in rows}
    for row in rows:
        for rank, seconds in row.waited_for_s.items():
            waited[rank] = waited.get(rank, 0.0) + seconds / others
    return waited


def _short(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value
