"""What the machine can do: native/limit.cc."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.peers.compiled import compiled
from benchmarks.peers.places import each_rank
from benchmarks.program import Job, Program

__all__ = ["LIMIT"]


def _start(job: Job) -> list[tuple[Sequence[str], Mapping[str, str]]]:
    program = compiled("limit", ["-mprefer-vector-width=512"])
    # In memory, as every library's shared memory is.
    shared = f"/dev/shm/{job.directory.name}-limit"
    return each_rank(job, [str(program), *job.rank_arguments(), shared])


LIMIT = Program("limit", [], _start)
