"""One rank's part of a timeline, written while it runs."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ring_keras.monitoring.timeline.clocks import Clock, Offset
from ring_keras.monitoring.timeline.merged import RankTimeline

__all__ = ["PartFile", "find_parts", "read_part"]


class PartFile:
    """Lines of JSON: who writes, then its collectives; once for each membership.

    Args:
        timeline: The file of all ranks; this one is beside it.
        rank: Who writes.
        host: Its host.
        offset: Of its clock.
        generation: Of the membership.
        follows: Whether the job had one before, whose collectives are kept.

    Raises:
        OSError: If there can be no such file.
    """

    def __init__(
        self,
        timeline: Path,
        rank: int,
        host: str,
        offset: Offset,
        *,
        generation: int = 0,
        follows: bool = False,
    ) -> None:
        path = timeline.with_name(f"{timeline.name}.rank{rank}")
        # Unbuffered: what a full disk did not take is not tried again.
        self._file = path.open("ab" if follows else "wb", buffering=0)
        if follows:
            self._file.write(b"\n")  # Who was killed may have left half a line.
        head = {"rank": rank, "host": host, "offset": vars(offset)}
        self.add([{**head, "generation": generation}])

    def add(self, records: Sequence[dict[str, Any]]) -> None:
        """Puts them to the end, so that they are there if this process is killed.

        Raises:
            OSError: If the file cannot take them.
        """
        lines = "".join(json.dumps(record) + "\n" for record in records).encode()
        while lines:  # A disk may take a part before it says that it is full.
            lines = lines[self._file.write(lines) :]

    def close(self, lost: int) -> None:
        """Says how many collectives are not there.

        Raises:
            OSError: If the file cannot take that; it is closed.
        """
        with self._file:
            self.add([{"lost": lost}])


def find_parts(timeline: Path) -> list[Path]:
    """The parts that lie beside a timeline, by rank."""
    found = {}
    for path in timeline.parent.glob(f"{timeline.name}.rank*"):
        matched = re.fullmatch(r"\.rank(\d+)", path.name.removeprefix(timeline.name))
        if matched:
            found[int(matched[1])] = path
    return [found[rank] for rank in sorted(found)]


def read_part(path: Path) -> list[RankTimeline]:
    """What a rank wrote, by membership; empty if it was killed before that."""
    found: list[RankTimeline] = []
    for line in path.read_text(errors="replace").splitlines():
        try:
            entry = json.loads(line)
        except ValueError:  # The rank was killed while it wrote, or a disk was full.
            continue
        if "offset" in entry:
            offset = Offset(**entry.pop("offset"))
            found.append(RankTimeline(clock=Clock(offset, offset), records=[], **entry))
        elif "lost" in entry:
            found[-1] = dataclasses.replace(found[-1], lost=entry["lost"])
        else:
            found[-1].records.append(entry)
    return found
