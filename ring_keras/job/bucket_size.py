"""The size of gradient buckets where the user's code names none."""

from __future__ import annotations

import functools

from ring_keras.config import Config

__all__ = [
    "DEFAULT_BYTES",
    "GPU_DEFAULT_BYTES",
    "current_bytes",
    "set_tuned_bytes",
    "train_on_gpu",
]

DEFAULT_BYTES = 16 << 20
# NCCL needs more at once to reach its bandwidth: by a model of 8 GPUs joined by
# NVSwitch, 79 % of it at 25 MiB and 91 % at 64 MiB. Not measured.
GPU_DEFAULT_BYTES = 32 << 20

_tuned_bytes: int | None = None
_on_gpu = False


def train_on_gpu(on_gpu: bool) -> None:
    """Says where this job's gradients are, on every rank alike."""
    global _on_gpu
    _on_gpu = on_gpu


def set_tuned_bytes(nbytes: int | None) -> None:
    """Takes what was measured for this job; None forgets it."""
    global _tuned_bytes
    _tuned_bytes = nbytes


def current_bytes() -> int:
    """What the environment sets, or else what was measured, or else the default."""
    default = GPU_DEFAULT_BYTES if _on_gpu else DEFAULT_BYTES
    return _configured_bytes() or _tuned_bytes or default


@functools.cache
def _configured_bytes() -> int | None:
    return Config.from_environment().bucket_size_bytes
