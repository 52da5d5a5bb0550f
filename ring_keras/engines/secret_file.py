"""A job's secret where `init()` and ringrun read it: in memory, for its user alone."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

__all__ = ["secret_file"]


@contextlib.contextmanager
def secret_file(token: str) -> Iterator[str]:
    """The path of a file with it, for this process and others of its user.

    Whatever ends this process, no disk keeps it.

    Args:
        token: In hexadecimal digits.
    """
    descriptor = os.memfd_create("ring_keras-token", os.MFD_CLOEXEC)
    try:
        os.fchmod(descriptor, 0o600)
        os.write(descriptor, token.encode("ascii"))
        yield f"/proc/{os.getpid()}/fd/{descriptor}"
    finally:
        os.close(descriptor)
