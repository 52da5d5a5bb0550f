"""What ranks have written down of their memberships, and what must be true of it.

Each process writes a line for each step that it has committed: when, the generation,
its rank, the number of ranks, the step and, after the first step of a generation, a
digest of what all ranks have alike, else "-". Times are not compared: a process may be
stopped between its commit and its line.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from support.processes import is_alive, started_at


class WrongError(Exception):
    """What should not be."""


class Step(NamedTuple):
    """A step that a process has committed."""

    at: float
    generation: int
    rank: int
    size: int
    number: int
    digest: str


class Process:
    """One process of the job, as far as it has written.

    Args:
        path: Of its lines: `steps.NUMBER`, beside `pid.NUMBER`.
    """

    def __init__(self, path: Path) -> None:
        self.number = int(path.suffix[1:])
        noted = path.with_name(f"pid.{self.number}")
        self.pid = int(noted.read_text())
        self._noted_at = noted.stat().st_mtime
        self.steps: list[Step] = []
        self._file = path.open()
        self._rest = ""

    def is_alive(self) -> bool:
        """Whether it runs: by now its pid may be that of any other process."""
        with contextlib.suppress(OSError):
            return is_alive(self.pid) and started_at(self.pid) <= self._noted_at
        return False

    def read(self) -> None:
        """Takes the lines that are new."""
        *lines, self._rest = (self._rest + self._file.read()).split("\n")
        for line in lines:
            at, *numbers, digest = line.split()
            self.steps.append(Step(float(at), *map(int, numbers), digest))


def check(processes: list[Process]) -> None:
    """No step is lost; no generation has two memberships, or runs beside another.

    And all ranks begin it alike.

    Raises:
        WrongError: If one of these is not true.
    """
    for process in processes:
        _check_process(process)
    members = _members(processes)
    for generation, process_of in members.items():
        sizes = {size for size, _ in process_of}
        if len(sizes) > 1:
            raise WrongError(f"generation {generation} has the sizes {sizes}")
        for (size, rank), numbers in process_of.items():
            if len(numbers) > 1 or not 0 <= rank < size:
                raise WrongError(
                    f"generation {generation}: rank {rank} of {size} is {numbers}"
                )
    _check_order(processes)
    _check_beginnings(processes)


def _check_process(process: Process) -> None:
    """What a process has committed is never taken back while it lives."""
    for before, after in itertools.pairwise(process.steps):
        if after.number <= before.number or after.generation < before.generation:
            raise WrongError(f"process {process.number}: {before}, then {after}")


def _members(
    processes: list[Process],
) -> dict[int, dict[tuple[int, int], set[int]]]:
    """Of each generation: which processes were which rank of how many."""
    members: dict[int, dict[tuple[int, int], set[int]]]
    members = defaultdict(lambda: defaultdict(set))
    for process in processes:
        for step in process.steps:
            members[step.generation][step.size, step.rank].add(process.number)
    return members


def _check_order(processes: list[Process]) -> None:
    """A generation begins behind all others' steps.

    One step may be in two generations: a rank that was lost may have ended it where
    the others could not.
    """
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for process in processes:
        for step in process.steps:
            generation, number = step.generation, step.number
            first[generation] = min(first.get(generation, number), number)
            last[generation] = max(last.get(generation, number), number)
    for one, other in itertools.pairwise(sorted(first)):
        if last[one] > first[other]:
            raise WrongError(
                f"generation {one} has done step {last[one]}, and generation {other} "
                f"begins with {first[other]}: two at a time, or steps that are lost"
            )


def _check_beginnings(processes: list[Process]) -> None:
    """All ranks are alike after a generation's first step."""
    firsts: dict[int, set[tuple[int, str]]] = defaultdict(set)
    for process in processes:
        for step in process.steps:
            if step.digest != "-":
                firsts[step.generation].add((step.number, step.digest))
    for generation, first in firsts.items():
        if len(first) > 1:
            raise WrongError(f"generation {generation} begins differently: {first}")
