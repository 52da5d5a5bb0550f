"""Where things are, and how ranks are started without a launcher."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.program import Job

__all__ = ["OWN_PYTHON", "PEERS_DIR", "ROOT_DIR", "each_rank", "python_ranks"]

ROOT_DIR = Path(__file__).resolve().parent.parent.parent
# Where make_environments.sh put them.
PEERS_DIR = Path(os.environ.get("RING_KERAS_PEERS") or ROOT_DIR / "build" / "peers")
OWN_PYTHON = Path(sys.executable)


def python_ranks(python: Path, module: str, job: Job) -> list[str]:
    """The command that runs a module of `benchmarks.ranks` as one rank."""
    return [str(python), "-m", "benchmarks.ranks", module, *job.rank_arguments()]


def each_rank(
    job: Job, command: Sequence[str], variables: Mapping[str, str] | None = None
) -> list[tuple[Sequence[str], Mapping[str, str]]]:
    """One process per rank, where no launcher is needed."""
    return [
        (
            command,
            {
                "BENCHMARK_RANK": str(rank),
                "BENCHMARK_SIZE": str(job.size),
                **(variables or {}),
            },
        )
        for rank in range(job.size)
    ]
