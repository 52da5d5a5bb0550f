"""Whoever reads what ringrun itself prints."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

__all__ = ["to_reader"]


def to_reader(write: Callable[[], int]) -> int:
    """Ends quietly where the reader has read enough, as `head` does."""
    try:
        code = write()
        sys.stdout.flush()
    except BrokenPipeError:
        # Or Python would try to write the rest when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    return code
