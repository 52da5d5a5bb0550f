"""The directory in which a call travels to processes, and their results come back."""

from __future__ import annotations

import linecache
import pickle
import sys
from pathlib import Path

from ring_keras.engines.outcomes import Outcome

__all__ = ["CallFiles"]


class CallFiles:
    """The files of one job, or those of it on one host.

    Args:
        directory: Which this user alone can read.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def write_call(
        self, call: bytes, serializer: str, *, is_elastic: bool = False
    ) -> None:
        """Writes what `call_rank.py` reads: where modules are found, then the call.

        Args:
            call: A function without arguments, pickled.
            serializer: The module whose `dumps` pickles what that returns.
            is_elastic: Whether processes shall run in this directory, say themselves
                what the function raises, and may end in it.
        """
        start = {
            "sys_path": sys.path,
            "argv": None if is_elastic else sys.argv,
            # A notebook's cells are in no file that a traceback could quote.
            "cells": {
                name: entry
                for name, entry in linecache.cache.items()
                if len(entry) > 1 and entry[1] is None
            },
            "directory": str(Path.cwd()) if is_elastic else None,
            "serializer": serializer,
        }
        (self._directory / "call").write_bytes(pickle.dumps(start) + call)

    def outcomes(self) -> list[Outcome]:
        """Of each process that had the time to say it."""
        paths = self._directory.glob("*.outcome")
        return [pickle.loads(path.read_bytes()) for path in paths]
