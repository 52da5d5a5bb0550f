"""Runs a command and says how long each step took that it announces.

`python benchmarks/steps.py make demo`. A step begins with a line `== TITLE`, as the
Makefile prints it; pytest's own lines end as they begin. Needs nothing but Python: it
measures the set-up itself.
"""

from __future__ import annotations

import dataclasses
import re
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

_ANNOUNCES = re.compile(r"== (.*[^=\s])\s*")


@dataclasses.dataclass
class Run:
    """What a command has done.

    Attributes:
        steps: Each step's title and seconds, in order.
        seconds: Those of the whole command.
        cpu_seconds: What it and its children computed, on all cores.
        exit_code: Its own.
    """

    steps: list[tuple[str, float]]
    seconds: float
    cpu_seconds: float
    exit_code: int


def run_steps(
    command: Sequence[str],
    directory: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Run:
    """Runs it, and shows what it says."""
    cpu_before = _cpu_seconds()
    began = time.monotonic()
    moments = [("Before the first step", began)]
    with subprocess.Popen(
        command,
        cwd=directory,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            text = line.decode(errors="replace")
            if announced := _ANNOUNCES.fullmatch(text):
                moments.append((announced[1], time.monotonic()))
            sys.stdout.write(text)
            sys.stdout.flush()
    ended = time.monotonic()
    ends = [moment for _, moment in moments[1:]] + [ended]
    steps = [(title, end - at) for (title, at), end in zip(moments, ends, strict=True)]
    cpu_seconds = _cpu_seconds() - cpu_before
    return Run(steps, ended - began, cpu_seconds, process.returncode)


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def table(title: str, run: Run) -> str:
    """The steps as Markdown."""
    rows = [*run.steps, ("**all**", run.seconds)]
    return "\n".join(
        [
            f"### {title}: {run.seconds:.0f} s, {run.cpu_seconds:.0f} s of processors",
            "",
            "| step | s |",
            "|---|---:|",
            *(f"| {step} | {seconds:.1f} |" for step, seconds in rows),
            "",
        ]
    )


def main(command: Sequence[str]) -> int:
    run = run_steps(command)
    print(f"\n{table(' '.join(command), run)}", flush=True)
    return run.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
