"""Tells the launcher each second how far this rank is."""

from __future__ import annotations

import contextlib
import json
import os
import select
import threading
import time
from collections.abc import Iterable
from typing import Any

from ring_keras import _native
from ring_keras.errors import RingKerasError
from ring_keras.job.job import Job, PerJob
from ring_keras.monitoring.events import event

__all__ = ["begin_reports", "end_reports"]

_INTERVAL_S = 1.0
_NUMBERS = (
    "process_set",  # Of the last step.
    "examples",
    "duration_s",
    "input_s",
    "compute_s",
    "wait_s",
    "exposed_s",
    "bytes",
)
# Ranks that this one has waited for most, or waits for. A line must fit into what a
# pipe takes at once, `select.PIPE_BUF` bytes, also where a character of a text takes
# 12 of them.
_MAX_RANKS = 64
_SHORTENED_TEXT = 250
# Of what is over there are fewer.
_PENDING_ONLY = 1 << 62


class _Reporter:
    """A thread of its own, as a rank that stands still shall be seen to."""

    def __init__(self, pipe: str, job: Job) -> None:
        self._fd = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._rank = job.rank
        self._events = job.events
        self._told = 0
        self._stalls = _Stalls(job.rank, job.config.stall_timeout_s)
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
                waits = _native.waits()
                stalls = self._stalls.new()
            except RingKerasError:  # It has left the job.
                return
            noted, self._told = self._events.since(self._told)
            self._write(report_line(self._rank, totals, waits))
            for one in [*stalls, *noted]:
                self._write(event_line(self._rank, one))

    def _write(self, line: bytes) -> None:
        if len(line) > select.PIPE_BUF:
            return  # Another rank's line might come into the middle of it.
        # Where the launcher is behind, or gone, it gets no report.
        with contextlib.suppress(OSError):
            os.write(self._fd, line)


class _Stalls:
    """Collectives that have been under way for too long, each told once."""

    def __init__(self, rank: int, longer_than_s: float) -> None:
        self._rank = rank
        self._longer_than_s = longer_than_s
        self._told: set[tuple[str, str, int]] = set()

    def new(self) -> list[dict[str, Any]]:
        since = time.time() - self._longer_than_s
        # By what stays the same: times are converted anew in each call.
        pending = {
            (one["kind"], one["name"], one["step"]): one["submitted_at"]
            for one in _native.recent_collectives(_PENDING_ONLY)
            if one["submitted_at"] is not None and one["submitted_at"] <= since
        }
        new = [key for key in pending if key not in self._told]
        self._told = set(pending)
        return [
            event(
                "stall",
                f"{key[0]} '{key[1]}' has waited for other ranks for "
                f"{time.time() - pending[key]:.1f} s.",
                self._rank,
            )
            for key in new
        ]


def report_line(rank: int, totals: dict[str, Any], waits: dict[int, float]) -> bytes:
    """As `ring_keras.launch.reports` reads it."""
    report = {
        "rank": rank,
        "steps": totals["step"],
        **{name: round(totals[name], 6) for name in _NUMBERS},
        "waited_for_s": _longest(enumerate(totals["waited_for_s"])),
        "waits_for_s": _longest(waits.items()),
    }
    return _line(report)


def _longest(seconds_by_rank: Iterable[tuple[int, float]]) -> dict[str, float]:
    longest = sorted(seconds_by_rank, key=lambda one: -one[1])[:_MAX_RANKS]
    return {str(rank): round(seconds, 6) for rank, seconds in longest if seconds > 0}


def event_line(rank: int, one: dict[str, Any]) -> bytes:
    """The same of an event; a text that takes too many bytes is cut off."""
    line = _line({"rank": rank, "event": one})
    if len(line) <= select.PIPE_BUF:
        return line
    text = one["text"][:_SHORTENED_TEXT]
    return _line({"rank": rank, "event": {**one, "text": text}})


def _line(content: dict[str, Any]) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode() + b"\n"


# If the launcher wants to know.
_reporter: PerJob[_Reporter | None] = PerJob(lambda: None)


def begin_reports(pipe: str | None, job: Job) -> None:
    """Begins to report, if the launcher wants to know."""
    if pipe:
        # A launcher that is gone must not end this rank.
        with contextlib.suppress(OSError):
            _reporter.put(job, _Reporter(pipe, job))


def end_reports(job: Job) -> None:
    """Before this rank leaves the job."""
    reporter = _reporter.of(job)
    _reporter.put(job, None)
    if reporter is not None:
        reporter.end()
