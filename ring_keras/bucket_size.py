"""The size of gradient buckets where the user's code names none."""

from __future__ import annotations

import functools

from ring_keras.config import Config

__all__ = ["DEFAULT_BYTES", "current_bytes", "set_tuned_bytes"]

DEFAULT_BYTES = 16 << 20

_tuned_bytes: int | None = None


def set_tuned_bytes(nbytes: int | None) -> None:
    """Takes what was measured for this job; None forgets it."""
    global _tuned_bytes
    _tuned_bytes = nbytes


def current_bytes() -> int:
    """What the environment sets, or else what was measured, or else the default."""
    return _configured_bytes() or _tuned_bytes or DEFAULT_BYTES


@functools.cache
def _configured_bytes() -> int | None:
    return Config.from_environment().bucket_size_bytes
