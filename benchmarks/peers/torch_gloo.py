"""PyTorch with gloo."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.peers.places import PEERS_DIR, each_rank, python_ranks
from benchmarks.program import Job, Program

__all__ = ["STARTUP", "TORCH"]

_PYTHON = PEERS_DIR / "torch" / "bin" / "python"


def _program(name: str, module: str) -> Program:
    def start(job: Job) -> list[tuple[Sequence[str], Mapping[str, str]]]:
        variables = {"BENCHMARK_MEETING": str(job.directory / "meeting")}
        variables["GLOO_SOCKET_IFNAME"] = "lo"
        return each_rank(job, python_ranks(_PYTHON, module, job), variables)

    return Program(name, [_PYTHON], start)


TORCH = _program("torch gloo", "torch_gloo")
STARTUP = _program("torch DDP", "startup_torch")
