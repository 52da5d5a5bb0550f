"""Keeps what the flight recorder would overwrite."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

from absl import logging

from ring_keras import _native
from ring_keras.job.job import PerJob

__all__ = ["Collector", "recording"]

# The recorder holds 4,096 collectives.
_INTERVAL_S = 0.1


class _Recording(Protocol):
    """A timeline that is being recorded."""

    def end(self) -> None:
        """This rank is about to leave the job."""


# The one that there is.
recording: PerJob[_Recording | None] = PerJob(lambda: None)


class Collector:
    """Takes this rank's collectives from the recorder, from now on.

    Args:
        take: Gets them as they end, in a thread of the collector's. If it raises, as
            where a disk is full, that is logged, and it gets no more.
    """

    def __init__(self, take: Callable[[list[dict[str, Any]]], None]) -> None:
        self._give = take
        self.lost = 0
        """How many were overwritten before they were taken."""
        ended = [r for r in _native.recent_collectives() if r["number"]]
        self._last = ended[-1]["number"] if ended else 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name="ring_keras timeline", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Takes the last ones."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        stopped = False
        while not stopped:
            stopped = self._stopped.wait(_INTERVAL_S)
            try:
                self._take()
            except Exception as error:
                logging.warning("ring_keras: [RK410] the timeline ends here: %r", error)
                return

    def _take(self) -> None:
        recent = _native.recent_collectives(self._last)
        records = [record for record in recent if record["number"]]
        if not records:
            return
        self.lost += records[0]["number"] - self._last - 1
        self._last = records[-1]["number"]
        self._give(records)
