"""Whether /dev/shm has room for what other libraries put there.

ring_keras's own memory has no name and no such limit (see memfd.py). But there are
NCCL's buffers between GPUs, Python's semaphores, which Keras's loaders use, and the
card by which ranks that srun or mpirun has started find each other.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ring_keras.launch.doctor.finding import Finding, State
from ring_keras.launch.doctor.host.cuda_driver import gpu_count
from ring_keras.launch.doctor.host.fixes import as_root, in_container
from ring_keras.launch.doctor.job_shape import JobShape

__all__ = ["check"]

_PLACE = Path("/dev/shm")
# NCCL maps up to some 10 MB for each pair of GPUs on its way through host memory;
# Docker's default of 64 MB is what its documentation says to raise to 1 GB.
_FOR_GPUS_NBYTES = 1 << 30
_FOR_LOADERS_NBYTES = 1 << 20


def check(job: JobShape) -> list[Finding]:
    """How much is free there, against what these ranks need."""
    needed = _FOR_GPUS_NBYTES if gpu_count() else job.local_size * _FOR_LOADERS_NBYTES
    try:
        room = os.statvfs(_PLACE)
    except OSError as error:
        return [_short(f"there is none: {error.strerror}", needed, {})]
    if not os.access(_PLACE, os.W_OK | os.X_OK):
        return [_short("you may not write there", needed, {})]
    free, size = (room.f_bavail * room.f_frsize, room.f_blocks * room.f_frsize)
    measured = {"free_bytes": free, "size_bytes": size, "needed_bytes": needed}
    text = f"{_mib(free)} of {_mib(size)} free"
    if size and free < needed:
        return [_short(text, needed, measured)]
    return [Finding("/dev/shm", State.OK, text, measured=measured)]


def _short(text: str, needed: int, measured: Mapping[str, float]) -> Finding:
    mib = max(1024, -(-needed // (1 << 20)))
    fix = (
        f"docker run --shm-size={mib}m ..."
        if in_container()
        else as_root(f"mount -o remount,size={mib}m /dev/shm")
    )
    return Finding(
        "/dev/shm",
        State.WARNING,
        text,
        expected=f"{_mib(needed)} free, for NCCL and for loaders' processes",
        fix=fix,
        measured=measured,
    )


def _mib(nbytes: int) -> str:
    return f"{nbytes / (1 << 20):,.0f} MiB"
