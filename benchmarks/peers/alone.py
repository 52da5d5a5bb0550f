"""Our own environment without any package that distributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.peers.places import OWN_PYTHON, each_rank, python_ranks
from benchmarks.program import Job, Program

__all__ = ["ALONE"]


def _start(job: Job) -> list[tuple[Sequence[str], Mapping[str, str]]]:
    return each_rank(job, python_ranks(OWN_PYTHON, "alone", job))


ALONE = Program("independent processes", [OWN_PYTHON], _start)
