"""Joining a job, and what a process can know about it and the build."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ring_keras as ring
from ring_keras import _native
from ring_keras.config import Config
from ring_keras.horovod._absent import refuse_unless_default
from ring_keras.job.job import current_job
from ring_keras.job.process_set import ProcessSet
from ring_keras.monitoring.timeline.alone import (
    start_timeline_alone,
    stop_timeline_alone,
)

__all__ = [
    "ccl_built",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rocm_built",
    "shutdown",
    "start_timeline",
    "stop_timeline",
]


def init(
    comm: Any = None,
    process_sets: Sequence[ProcessSet | Sequence[int]] | str | None = None,
) -> None:
    """Joins the job; see `ring_keras.init`.

    Args:
        comm: None. A job has the ranks that its launcher started.
        process_sets: Process sets to make at once. "dynamic" is taken and means
            nothing: they can be made at any time.
    """
    refuse_unless_default(
        "comm", comm, None, "For some of the ranks, use process_sets."
    )
    ring.init(() if process_sets in (None, "dynamic") else process_sets)  # type: ignore[arg-type]


def shutdown() -> None:
    """Leaves the job; see `ring_keras.shutdown`."""
    ring.shutdown()


def is_homogeneous() -> bool:
    """Whether every host of the job had as many ranks as the others at `init`."""
    return len(set(current_job().local_sizes)) == 1


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Records rank 0's collectives; any rank may call it, and need not.

    For those of all ranks in one file, see `ring_keras.start_timeline`.

    Args:
        file_path: Where `stop_timeline` puts them, as Chrome's JSON.
        mark_cycles: There are no cycles to mark.
    """
    refuse_unless_default(
        "mark_cycles", mark_cycles, False, "There are no cycles to mark."
    )
    if current_job().rank == 0:
        start_timeline_alone(Path(file_path))


def stop_timeline() -> None:
    """Ends it, and writes the file."""
    if current_job().rank == 0:
        stop_timeline_alone()


# Asked by scripts that choose what to do by what Horovod was built with. Here one
# engine does everything, but for tensors on a GPU, which go over NCCL.


def mpi_threads_supported() -> bool:
    """Whether MPI is used, from several threads: no."""
    return False


def mpi_enabled() -> bool:
    """Whether MPI is used: no."""
    return False


def mpi_built() -> bool:
    """Whether MPI could be used: no."""
    return False


def gloo_enabled() -> bool:
    """Whether Gloo is used: no."""
    return False


def gloo_built() -> bool:
    """Whether Gloo could be used: no."""
    return False


def nccl_built() -> int:
    """NCCL's version as a number, 22707 for 2.27.7; 0 if it is not installed."""
    version = _cuda_library_version("NCCL")
    major, minor, patch = (int(part) for part in (version or "0.0.0").split("."))
    return major * 10000 + minor * 100 + patch


def ddl_built() -> bool:
    """Whether IBM's DDL could be used: no."""
    return False


def ccl_built() -> bool:
    """Whether oneCCL could be used: no."""
    return False


def cuda_built() -> bool:
    """Whether the CUDA runtime is installed, which tensors on a GPU need."""
    return bool(_cuda_library_version("CUDA runtime"))


def rocm_built() -> bool:
    """Whether collectives run on ROCm devices: no."""
    return False


def _cuda_library_version(title: str) -> str:
    """Empty if there is none. Libraries are opened when needed, not built in."""
    path = Config.from_environment().cuda_library_path or ""
    return next(
        version for name, version, _, _ in _native.cuda_libraries(path) if name == title
    )
