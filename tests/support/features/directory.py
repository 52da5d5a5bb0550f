"""A directory that all ranks of a test see."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import ring_keras as ring


@contextlib.contextmanager
def common_directory() -> Iterator[Path]:
    """Made by rank 0, and removed by it when all ranks are through."""
    with contextlib.ExitStack() as stack:
        path = None
        if ring.rank() == 0:
            path = stack.enter_context(tempfile.TemporaryDirectory())
        yield Path(ring.broadcast_object(path))
        ring.barrier()
