"""What all ranks have recorded, by one clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ring_keras.monitoring.timeline.clocks import Clock

__all__ = ["RankTimeline", "Slice", "numbered", "slices", "tracks"]

_MOMENTS = (
    "submitted_at",
    "arrived_at",
    "matched_at",
    "first_byte_at",
    "last_byte_at",
    "done_at",
)


@dataclass(frozen=True)
class RankTimeline:
    """One rank's part of a timeline."""

    rank: int
    host: str
    clock: Clock
    records: list[dict[str, Any]]
    lost: int = 0
    generation: int = 0

    @property
    def title(self) -> str:
        """For people: who it is, and how well its clock is known."""
        clock = f", clock ± {self.clock.error_s * 1e6:.0f} us" if self.rank else ""
        lost = f", {self.lost} collectives lost" if self.lost else ""
        return f"rank {self.rank} ({self.host}){clock}{lost}"


@dataclass(frozen=True)
class Slice:
    """Something that lasted, in seconds by rank 0's clock.

    Attributes:
        flow: The same number for one collective on all ranks.
        parts: What it consists of, one after the other.
    """

    name: str
    begin: float
    end: float
    arguments: dict[str, Any]
    flow: int = 0
    parts: list[Slice] = field(default_factory=list)


def slices(rank: RankTimeline, flows: dict[Any, int]) -> Iterator[Slice]:
    """The rank's collectives, in the order in which they were submitted.

    Args:
        rank: Whose.
        flows: The numbers given so far, to all ranks; new ones are added.
    """
    for record, flow in numbered(rank, flows):
        yield _slice(record, flow, rank.clock)


def numbered(
    rank: RankTimeline, flows: dict[Any, int]
) -> Iterator[tuple[dict[str, Any], int]]:
    """The records, as `slices` has them, each with its number on all ranks."""
    uses: Counter[Any] = Counter()
    for record in sorted(rank.records, key=lambda one: one["submitted_at"] or 0.0):
        if record["submitted_at"] is None:
            continue
        name = (
            *(rank.generation, record["kind"], record["name"]),
            *(record["step"], record["ranks"]),
        )
        # All ranks began with the same one, so the n-th of one is the n-th of all.
        use = (*name, uses[name])
        uses[name] += 1
        yield record, flows.setdefault(use, len(flows) + 1)


def _slice(record: dict[str, Any], flow: int, clock: Clock) -> Slice:
    at = {
        moment: clock.corrected(record[moment])
        for moment in _MOMENTS
        if record[moment] is not None
    }
    begin, end = at["submitted_at"], at["done_at"]
    parts = []
    if "matched_at" in at and at["matched_at"] > at["arrived_at"]:
        name = f"wait for rank {record['last_rank']}"
        parts.append(Slice(name, at["arrived_at"], at["matched_at"], {}))
    if "last_byte_at" in at and at["last_byte_at"] > at["first_byte_at"]:
        parts.append(Slice("transfer", at["first_byte_at"], at["last_byte_at"], {}))
    kept = ("algorithm", "step", "bytes", "ranks", "last_rank", "outcome")
    arguments = {key: record[key] for key in kept if record[key] is not None}
    title = f"{record['kind']} {record['name']}"
    return Slice(title, begin, max(begin, end), arguments, flow, parts)


def tracks(found: Iterable[Slice]) -> list[list[Slice]]:
    """Puts what overlaps on tracks of its own."""
    result: list[list[Slice]] = []
    for one in found:
        free = (track for track in result if track[-1].end <= one.begin)
        track = next(free, None)
        if track is None:
            result.append(track := [])
        track.append(one)
    return result
