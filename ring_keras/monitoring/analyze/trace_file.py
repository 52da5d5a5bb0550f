"""The file of one rank: lines of JSON, and stacks as faulthandler writes them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ring_keras.monitoring.analyze.stacks import Stack, read_stacks

__all__ = ["Trace", "read_traces"]


@dataclass
class Trace:
    """What one rank wrote last.

    Attributes:
        rank: Its rank.
        size: How many ranks there are; 0 if it has written no dump.
        who: With its host and pid.
        why: What made it write.
        time: When, in seconds since 1970.
        ended: Its last collectives, in the order in which they ended.
        pending: Those under way, with the ranks that are `missing`.
        stacks: Of its threads.
        lock_held: Whether no thread gave Python's lock back meanwhile.
    """

    rank: int
    size: int = 0
    who: str = ""
    why: str = ""
    time: float = 0.0
    main_thread: int = 0
    ended: list[dict[str, Any]] = field(default_factory=list)
    pending: list[dict[str, Any]] = field(default_factory=list)
    stacks: list[Stack] = field(default_factory=list)
    lock_held: bool = False

    @property
    def step(self) -> int:
        """The latest step of which it has seen a collective."""
        return max((one["step"] for one in [*self.ended, *self.pending]), default=0)


def read_traces(directory: Path) -> dict[int, Trace]:
    """The files of a directory, by rank."""
    traces = {}
    for path in directory.glob("rank*.trace"):
        matched = re.fullmatch(r"rank(\d+)\.trace", path.name)
        if matched:
            rank = int(matched[1])
            traces[rank] = _read(path, rank)
    return dict(sorted(traces.items()))


def _read(path: Path, rank: int) -> Trace:
    trace = Trace(rank)
    stack_lines: list[str] = []
    for line in path.read_text(errors="replace").splitlines():
        entry = _entry(line)
        if entry is None:
            stack_lines.append(line)
            continue
        event = entry.pop("event", None)
        if event == "begin":
            trace = Trace(rank, main_thread=entry["main_thread"])
            stack_lines = []
        elif event == "dump":
            trace = Trace(
                rank,
                size=entry["size"],
                who=entry["who"],
                why=entry["why"],
                time=entry["time"],
                main_thread=trace.main_thread,
            )
        elif event == "collective":
            pending = entry["outcome"] == "pending"
            (trace.pending if pending else trace.ended).append(entry)
        elif event == "stacks":
            stack_lines = []
        elif event == "lock held":
            trace.lock_held = True
    trace.stacks = read_stacks(stack_lines)
    return trace


def _entry(line: str) -> dict[str, Any] | None:
    if not line.startswith('{"event"'):
        return None
    try:
        entry = json.loads(line)
    except ValueError:  # The process was killed while it wrote.
        return {}
    return entry if isinstance(entry, dict) else None
