"""The directory in which a call travels to the ranks, and their results come back."""

from __future__ import annotations

import json
import linecache
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ring_keras.engines import pickling
from ring_keras.engines.outcomes import Outcome

__all__ = ["CallFiles"]


class CallFiles:
    """The files of one job.

    Args:
        directory: Which this user alone can read.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.event_log = directory / "events.jsonl"
        """Where ringrun writes down how the job ended."""

    def write_call(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        """Writes what `rank.py` reads: where modules are found, then the call.

        Raises:
            TypeError: If it cannot be pickled.
        """
        try:
            call = pickling.dumps((fn, tuple(args), dict(kwargs)))
        except Exception as error:
            raise TypeError(
                f"run() cannot send {fn!r} and its arguments to the ranks, which are "
                f"processes of their own: {error}. Make what cannot be pickled inside "
                "the function."
            ) from error
        # A notebook's cells are in no file that a traceback could quote.
        cells = {
            name: entry
            for name, entry in linecache.cache.items()
            if len(entry) > 1 and entry[1] is None
        }
        start = pickle.dumps((sys.path, sys.argv, cells))
        (self._directory / "call").write_bytes(start + call)

    def write_outcome(self, rank: int, outcome: Outcome) -> None:
        """Writes how a rank's function ended."""
        outcome.write(self._outcome(rank))

    def outcomes(self, size: int) -> list[Outcome | None]:
        """How each rank's function ended; None if it did not."""
        return [
            pickle.loads(path.read_bytes()) if path.exists() else None
            for path in map(self._outcome, range(size))
        ]

    def conclusion(self) -> str | None:
        """Why the job failed, in ringrun's words; None if it has not said so there."""
        if not self.event_log.exists():
            return None
        events = map(json.loads, self.event_log.read_text().splitlines())
        faults = [
            str(event["text"])
            for event in events
            if event["kind"] == "fault" and event["rank"] is None
        ]
        return faults[-1] if faults else None

    def _outcome(self, rank: int) -> Path:
        return self._directory / f"outcome.{rank}"
