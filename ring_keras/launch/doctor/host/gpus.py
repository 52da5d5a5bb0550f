"""NVIDIA's libraries, a GPU for each rank, and whether GPUs reach each other."""

from __future__ import annotations

import sys

from ring_keras.launch.doctor.finding import Finding, State
from ring_keras.launch.doctor.host.cuda_driver import (
    gpu_count,
    gpu_names,
    unreached_pairs,
)
from ring_keras.launch.doctor.host.settings import config
from ring_keras.launch.doctor.job_shape import JobShape

__all__ = ["check"]


def check(job: JobShape) -> list[Finding]:
    """What only tensors on GPUs need."""
    return [*_libraries(), _gpus(job), _peers()]


def _libraries() -> list[Finding]:
    try:
        from ring_keras import _native
    except ImportError:
        return []  # Said elsewhere.
    return [
        _library(title, version, path, problem)
        for title, version, path, problem in _native.cuda_libraries(
            config().cuda_library_path or ""
        )
    ]


def _library(title: str, version: str, path: str, problem: str) -> Finding:
    if not problem:
        text = f"{version or 'unknown version'} in {path}"
        return Finding(title, State.OK, text)
    if not gpu_count():
        text = "not found, and there is no GPU to need it"
        return Finding(title, State.NOT_APPLICABLE, text)
    return Finding(
        title,
        State.FAILURE,
        f"not found: {problem}",
        expected="NVIDIA's library, for the GPUs that are here",
        fix=f"{sys.executable} -m pip install 'ring-keras[cuda]'",
    )


def _gpus(job: JobShape) -> Finding:
    names = gpu_names()
    if not names:
        text = "none that NVIDIA's driver shows to this process"
        return Finding("GPUs", State.NOT_APPLICABLE, text)
    text = f"{len(names)}: {', '.join(sorted(set(names)))}"
    measured = {"count": len(names)}
    if config().device == "cpu" or len(names) >= job.local_size:
        return Finding("GPUs", State.OK, text, measured=measured)
    return Finding(
        "GPUs",
        State.FAILURE,
        text,
        expected=f"{job.local_size}, one for each rank, or RING_KERAS_DEVICE=cpu",
        fix=f"ringrun -np {len(names)} ...",
        measured=measured,
    )


def _peers() -> Finding:
    title = "GPU peer access"
    count = gpu_count()
    if count < 2:
        text = "there is one GPU" if count else "there is no GPU"
        return Finding(title, State.NOT_APPLICABLE, text)
    pairs = unreached_pairs()
    if not pairs:
        return Finding(title, State.OK, f"all {count} GPUs reach each other's memory")
    named = ", ".join(f"{first} to {second}" for first, second in pairs[:4])
    more = f" and {len(pairs) - 4} more" if len(pairs) > 4 else ""
    return Finding(
        title,
        State.WARNING,
        f"no way from GPU {named}{more}: NCCL copies through the host's memory",
        expected="NVLink, or PCIe without ACS and without an IOMMU in between",
        fix="nvidia-smi topo -p2p r",
        measured={"pairs_without": len(pairs)},
    )
