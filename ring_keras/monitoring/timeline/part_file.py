"""One rank's part of a timeline, written while it runs."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ring_keras.monitoring.timeline.clocks import Clock, Offset
from ring_keras.monitoring.timeline.merged import RankTimeline

__all__ = ["PartFile", "find_parts", "read_part"]


class PartFile:
    """Lines of JSON: who writes, then its collectives.

    Args:
        timeline: The file of all ranks; this one is beside it.
        rank: Who writes.
        host: Its host.
        offset: Of its clock.
    """

    def __init__(self, timeline: Path, rank: int, host: str, offset: Offset) -> None:
        path = timeline.with_name(f"{timeline.name}.rank{rank}")
        self._file = path.open("w")
        self._write({"rank": rank, "host": host, "offset": vars(offset)})

    def add(self, records: Sequence[dict[str, Any]]) -> None:
        """Puts them to the end, so that they are there if this process is killed."""
        for record in records:
            self._write(record)
        self._file.flush()

    def close(self, lost: int) -> None:
        """Says how many collectives are not there."""
        self._write({"lost": lost})
        self._file.close()

    def _write(self, entry: dict[str, Any]) -> None:
        self._file.write(json.dumps(entry) + "\n")


def find_parts(timeline: Path) -> list[Path]:
    """The parts that lie beside a timeline, by rank."""
    found = {}
    for path in timeline.parent.glob(f"{timeline.name}.rank*"):
        matched = re.fullmatch(r"\.rank(\d+)", path.name.removeprefix(timeline.name))
        if matched:
            found[int(matched[1])] = path
    return [found[rank] for rank in sorted(found)]


def read_part(path: Path) -> RankTimeline | None:
    """What a rank wrote; None if it was killed before it could write anything."""
    entries = []
    for line in path.read_text(errors="replace").splitlines():
        try:
            entries.append(json.loads(line))
        except ValueError:  # The rank was killed while it wrote.
            break
    if not entries:
        return None
    head, *rest = entries
    offset = Offset(**head["offset"])
    lost = rest.pop()["lost"] if rest and "lost" in rest[-1] else 0
    return RankTimeline(head["rank"], head["host"], Clock(offset, offset), rest, lost)
