"""How long ranks take until they train, and how much memory they have then."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.machine import describe_machine, usable_cores
from benchmarks.peers import alone, horovod, ring_keras, torch_gloo
from benchmarks.program import OperationError, Program, ProgramError, Ranks
from benchmarks.report import table

__all__ = ["startup"]

_RANKS = 2
_TIMEOUT_S = 120
_STEPS = 20
_PROGRAMS = (
    alone.STARTUP,
    ring_keras.STARTUP,
    horovod.STARTUP,
    torch_gloo.STARTUP,
)
# What is measured, and the unit that it is printed in.
_FIGURES = {
    "import the framework": (1.0, "s"),
    "import the package and join": (1.0, "s"),
    "build and compile": (1.0, "s"),
    "first step": (1.0, "s"),
    "later step": (1e-3, "ms"),
    "most resident": (1 << 20, "MiB"),
    "its share": (1 << 20, "MiB"),
}

Figures = dict[str, float]


def startup(arguments: Sequence[str]) -> int:
    """Starts each package several times, in turn; prints medians of the slowest rank.

    Returns:
        1 if a program failed, else 0.
    """
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks startup", description=__doc__
    )
    parser.add_argument("--launches", type=int, default=5, help="of each package")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all there")
    options = parser.parse_args(arguments)
    machine = describe_machine()
    for name, value in machine.items():
        print(f"{name}: {value}")
    programs = [program for program in _PROGRAMS if not program.missing()]
    launches: dict[str, list[Figures]] = {program.name: [] for program in programs}
    failed = False
    for launch in range(options.launches):
        turn = launch % len(programs)
        for program in [*programs[turn:], *programs[:turn]]:
            try:
                launches[program.name].append(_launch(program))
            except (OperationError, ProgramError) as error:
                print(error, file=sys.stderr)
                failed = True
    print(f"\n## Until {_RANKS} ranks train: median of {options.launches} launches\n")
    print(_report(launches))
    if options.json:
        text = json.dumps({"machine": machine, "launches": launches}, indent=1)
        options.json.write_text(text, encoding="utf-8")
    return int(failed)


def _launch(program: Program) -> Figures:
    """Of the rank that took longest, or has most."""
    with Ranks(program, _RANKS, usable_cores()) as ranks:
        parts = [
            _most(ranks.ask(line, _TIMEOUT_S))
            for line in (
                *("import", "join", "build"),
                *("first_step", f"later_steps samples={_STEPS}", "memory"),
            )
        ]
    (imported,), (joined,), (built,), (first,), later, memory = parts
    values = [imported, joined, built, first, statistics.median(later), *memory]
    return dict(zip(_FIGURES, values, strict=True))


def _most(answers: Sequence[Sequence[float]]) -> list[float]:
    return [max(of_ranks) for of_ranks in zip(*answers, strict=True)]


def _report(launches: Mapping[str, Sequence[Figures]]) -> str:
    rows = []
    for figure, (unit, name) in _FIGURES.items():
        cells = [
            f"{statistics.median(one[figure] for one in of_program) / unit:.3g}"
            if of_program
            else "failed"
            for of_program in launches.values()
        ]
        rows.append([f"{figure}, {name}", *cells])
    return table(["", *launches], rows)
