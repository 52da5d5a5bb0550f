"""Our own environment without any package that distributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.peers.places import OWN_PYTHON, each_rank, python_ranks
from benchmarks.program import Job, Program

__all__ = ["ALONE", "STARTUP"]


def _program(name: str, module: str) -> Program:
    def start(job: Job) -> list[tuple[Sequence[str], Mapping[str, str]]]:
        return each_rank(job, python_ranks(OWN_PYTHON, module, job))

    return Program(name, [OWN_PYTHON], start)


ALONE = _program("independent processes", "alone")
STARTUP = _program("Keras alone", "startup_alone")
