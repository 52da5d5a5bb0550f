"""Ranks that share the one NVIDIA GPU of this machine, for correctness alone."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

SHARED_GPU = {
    "NCCL_IB_DISABLE": "1",
    "NCCL_SOCKET_IFNAME": "lo",
    "RING_KERAS_COLLECTIVE_TIMEOUT_S": "60",
}
"""Of all ranks that share a GPU; tests/gpu/tensorflow.sh has it, too."""


@functools.cache
def has_gpu() -> bool:
    """Whether the driver lists one."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return False
    listed = subprocess.run([program, "-L"], capture_output=True, timeout=60)
    return listed.returncode == 0 and b"GPU 0" in listed.stdout


def library_directories() -> list[str]:
    """Of NVIDIA's pip packages, which a source tree does not lie beside."""
    packages = Path(sysconfig.get_path("purelib")) / "nvidia"
    names = ("cu13", "cuda_runtime", "cuda_nvrtc", "nccl")
    candidates = [packages / name / "lib" for name in names]
    return [str(directory) for directory in candidates if directory.is_dir()]


def real_gpu_environment(size: int) -> list[dict[str, str]]:
    """What each of `size` ranks needs. To NCCL each is on a host of its own."""
    chosen = os.environ.get("RING_KERAS_CUDA_LIBRARY_PATH")
    libraries = chosen or os.pathsep.join(library_directories())
    return [
        {
            "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0"),
            **SHARED_GPU,
            "NCCL_HOSTID": f"rank{rank}",
            "RING_KERAS_CUDA_LIBRARY_PATH": libraries,
            "TESTS_WITHOUT_TENSORFLOW": "1",
        }
        for rank in range(size)
    ]
