"""Open MPI, MPICH and Intel MPI, each with mpi4py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.peers.places import PEERS_DIR, python_ranks
from benchmarks.program import Job, Program

__all__ = ["INTEL_MPI", "MPICH", "OPEN_MPI"]


def _program(
    name: str, environment: str, options: Sequence[str], variables: Mapping[str, str]
) -> Program:
    directory = PEERS_DIR / environment / "bin"
    mpiexec, python = directory / "mpiexec", directory / "python"

    def start(job: Job) -> list[tuple[Sequence[str], Mapping[str, str]]]:
        launcher = [str(mpiexec), *options, "-n", str(job.size)]
        return [([*launcher, *python_ranks(python, "mpi", job)], variables)]

    return Program(name, [mpiexec, python], start)


# The ranks pin themselves, the same way for every package, so the launchers must
# not.
OPEN_MPI = _program(
    "Open MPI",
    "openmpi",
    ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"],
    {},
)
MPICH = _program("MPICH", "mpich", [], {})
INTEL_MPI = _program("Intel MPI", "intel_mpi", [], {"I_MPI_PIN": "0"})
