"""Measures the rows of a section in turn, so that all see the same machine."""

from __future__ import annotations

import contextlib
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.cases import Column, Row, Section
from benchmarks.program import (
    OperationError,
    Program,
    ProgramError,
    Ranks,
    UnsupportedError,
)

__all__ = ["Effort", "Results", "measure"]

_ANSWER_TIMEOUT_S = 120
# Below this a sample is many calls, so that the clock's own time is no part of it.
_SAMPLE_S = 2e-4
_MAX_SAMPLES = 500


@dataclass(frozen=True)
class Effort:
    """How long to measure.

    Attributes:
        rounds: How often each row is measured per column, in turn with the others.
        round_s: About how long each time.
        launches: How often all programs are started anew.
    """

    rounds: int
    round_s: float
    launches: int = 1


@dataclass
class Results:
    """Seconds per call, by row and column: one figure a round.

    Attributes:
        seconds: A round's figure is the median of its samples on the slowest
            rank.
        versions: What each program said it is.
        left_out: Programs that are not installed.
        failures: What could not be measured although it is, and why.
    """

    seconds: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def median(self, row: str, column: str) -> float | None:
        """Of the rounds; None if it was not measured."""
        rounds = self.seconds.get((row, column))
        return statistics.median(rounds) if rounds else None


def measure(
    section: Section, effort: Effort, cores: Sequence[int], results: Results
) -> None:
    """Starts the programs of a section and measures every row and column.

    Args:
        section: What.
        effort: How long.
        cores: For the ranks to be pinned to.
        results: Where to put the figures, as they come.
    """
    for _ in range(effort.launches):
        with contextlib.ExitStack() as stack:
            running = _start(section, cores, stack, results)
            for column in section.columns:
                _measure_column(section, column, running, effort, results)


def _start(
    section: Section,
    cores: Sequence[int],
    stack: contextlib.ExitStack,
    results: Results,
) -> dict[str, Ranks]:
    running: dict[str, Ranks] = {}
    programs: dict[str, Program] = {
        row.program.name: row.program for row in section.rows
    }
    for name, program in programs.items():
        if missing := program.missing():
            _note(results.left_out, f"{name}: left out: there is no {missing[0]}")
            continue
        _say(f"{section.title}: starting {name}")
        try:
            ranks = stack.enter_context(Ranks(program, section.ranks, cores))
        except ProgramError as error:
            _note(results.failures, str(error))
            continue
        results.versions[name] = ranks.version
        running[name] = ranks
    return running


def _measure_column(
    section: Section,
    column: Column,
    running: dict[str, Ranks],
    effort: Effort,
    results: Results,
) -> None:
    _say(f"{section.title}: {column.title}")
    requests: dict[str, str] = {}
    rows = [
        row
        for row in section.rows
        if row.program.name in running and column.nbytes >= row.least_nbytes
    ]

    def attempt(row: Row, line: str) -> float | None:
        if row.program.name not in running:
            return None
        try:
            answers = running[row.program.name].ask(
                line, _ANSWER_TIMEOUT_S, alone=row.alone
            )
        except UnsupportedError:
            return None
        except OperationError as error:
            _note(results.failures, f"{row.title}, {column.title}: {error}")
            requests.pop(row.title, None)
            return None
        except ProgramError as error:
            _note(results.failures, f"{error} ({column.title})")
            # What hangs may spin, and so slow the others.
            running.pop(row.program.name).close()
            return None
        return max(statistics.median(samples) for samples in answers if samples)

    for row in rows:
        line = f"{row.words} {column.words}".strip()
        seconds = attempt(row, f"{line} warmup=1 samples=3 inner=1")
        if seconds is not None:
            counts = _counts(seconds, effort.round_s * section.round_scale)
            requests[row.title] = f"{line} {counts}"
    rows = [row for row in rows if row.title in requests]
    for number in range(effort.rounds):
        # Another order each time: nobody always comes after the same one.
        turn = number % max(1, len(rows))
        for row in rows[turn:] + rows[:turn]:
            if row.title not in requests:
                continue  # It failed in an earlier round.
            seconds = attempt(row, requests[row.title])
            if seconds is not None:
                rounds = results.seconds.setdefault((row.title, column.title), [])
                rounds.append(seconds)
    for row in rows:
        if row.same and row.program.name in running:
            _check_same(row, column, running[row.program.name], results)


def _check_same(row: Row, column: Column, ranks: Ranks, results: Results) -> None:
    """Drops the figures of ranks that did not work together."""
    try:
        answers = ranks.ask(f"{row.same} {column.words}", _ANSWER_TIMEOUT_S)
    except (OperationError, ProgramError) as error:
        results.seconds.pop((row.title, column.title), None)
        _note(results.failures, f"{row.title}, {column.title}: {error}")
        return
    if not all(math.isclose(a, answers[0][0], rel_tol=1e-6) for (a,) in answers):
        results.seconds.pop((row.title, column.title), None)
        _note(
            results.failures,
            f"{row.title}, {column.title}: the ranks did not work together: "
            f"{row.same} is {answers}",
        )


def _counts(seconds: float, round_s: float) -> str:
    inner = max(1, min(100, round(_SAMPLE_S / seconds)))
    samples = max(3, min(_MAX_SAMPLES, round(round_s / (seconds * inner))))
    return f"warmup={max(1, inner // 2)} samples={samples} inner={inner}"


def _note(messages: list[str], message: str) -> None:
    _say(message)
    messages.append(message)


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)
