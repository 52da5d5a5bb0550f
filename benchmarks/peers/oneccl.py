"""Intel's oneCCL: native/oneccl_allreduce.cc under Intel MPI's mpiexec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.peers.compiled import DATA_DIR, compiled
from benchmarks.peers.places import PEERS_DIR
from benchmarks.program import Job, Program

__all__ = ["ONECCL"]

_ENVIRONMENT = PEERS_DIR / "oneccl"
_MPIEXEC = _ENVIRONMENT / "bin" / "mpiexec"
_LIBRARY = _ENVIRONMENT / "lib" / "libccl.so.1"

_VARIABLES = {
    "CCL_ATL_TRANSPORT": "mpi",
    "CCL_KVS_IFACE": "lo",
    "I_MPI_PIN": "0",
    # A thread of its own would spin on the rank's only core: 24 ms for 4 bytes.
    "CCL_WORKER_OFFLOAD": "0",
}


def _start(job: Job) -> list[tuple[Sequence[str], Mapping[str, str]]]:
    directory = str(_LIBRARY.parent)
    program = compiled(
        "oneccl_allreduce",
        [
            f"-I{_ENVIRONMENT / 'include'}",
            str(_LIBRARY),
            # For the libraries that this one wants, too.
            f"-Wl,--disable-new-dtags,-rpath,{directory},-rpath-link,{directory}",
        ],
    )
    command = [str(_MPIEXEC), "-n", str(job.size), str(program)]
    command += [*job.rank_arguments(), str(job.directory), str(DATA_DIR)]
    return [(command, _VARIABLES)]


ONECCL = Program("oneCCL", [_MPIEXEC, _LIBRARY], _start)
