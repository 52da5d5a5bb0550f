"""Tells the launcher each second how far this rank is."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from typing import Any

from ring_keras import _native
from ring_keras.errors import RingKerasError

__all__ = ["begin_reports", "end_reports"]

_INTERVAL_S = 1.0
_SUMS = (
    "examples",
    "duration_s",
    "input_s",
    "compute_s",
    "wait_s",
    "exposed_s",
    "bytes",
)
# Ranks that this one has waited for most. A line must fit into what a pipe takes at
# once, 4,096 bytes.
_MAX_RANKS = 64


class _Reporter:
    """A thread of its own, as a rank that stands still shall be seen to."""

    def __init__(self, pipe: str, rank: int) -> None:
        self._fd = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._rank = rank
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reporter", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Reports once more, and waits until that is done."""
        self._ending.set()
        self._thread.join()
        os.close(self._fd)

    def _run(self) -> None:
        ending = False
        while not ending:
            ending = self._ending.wait(_INTERVAL_S)
            try:
                totals = _native.stats(most_steps=0)["totals"]
            except RingKerasError:  # It has left the job.
                return
            # Where the launcher is behind, or gone, it gets no report.
            with contextlib.suppress(OSError):
                os.write(self._fd, report_line(self._rank, totals))


def report_line(rank: int, totals: dict[str, Any]) -> bytes:
    """As `ring_keras.launch.reports` reads it."""
    waited_for_s = sorted(enumerate(totals["waited_for_s"]), key=lambda one: -one[1])
    report = {
        "rank": rank,
        "steps": totals["step"],
        **{name: round(totals[name], 6) for name in _SUMS},
        "waited_for_s": {
            str(other): round(seconds, 6)
            for other, seconds in waited_for_s[:_MAX_RANKS]
            if seconds > 0
        },
    }
    return json.dumps(report, separators=(",", ":")).encode() + b"\n"


_reporter: _Reporter | None = None
"""That of the current membership."""


def begin_reports(pipe: str | None, rank: int) -> None:
    """Begins to report, if the launcher wants to know."""
    global _reporter
    if pipe:
        # A launcher that is gone must not end this rank.
        with contextlib.suppress(OSError):
            _reporter = _Reporter(pipe, rank)


def end_reports() -> None:
    """Before this rank leaves the job."""
    global _reporter
    reporter, _reporter = _reporter, None
    if reporter is not None:
        reporter.end()
