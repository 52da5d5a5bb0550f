"""What ranks report of their progress to the launcher, or to the agent of their host.

Each rank writes lines of JSON into a named pipe beside the file with the job's secret,
in a directory that only its owner can enter. A line is written at once or not at
all, so that lines of several ranks do not mix and no rank waits for the launcher.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ring_keras.launch.loop import Loop

__all__ = ["ReportPipe", "checked"]

_READ_NBYTES = 1 << 16
# Longer than any line that is written at once.
_MAX_LINE_NBYTES = 4096

_NUMBERS = (
    "steps",
    "process_set",
    "examples",
    "duration_s",
    "input_s",
    "compute_s",
    "wait_s",
    "exposed_s",
    "bytes",
)


class ReportPipe:
    """Reads what the ranks of a host report.

    Args:
        loop: Calls back.
        path: Where to make the pipe.
        on_report: Gets each report.
    """

    def __init__(
        self, loop: Loop, path: Path, on_report: Callable[[dict[str, Any]], None]
    ) -> None:
        os.mkfifo(path, 0o600)
        self.path = path
        """What ranks get to know as RING_KERAS_REPORT_PIPE."""
        self._on_report = on_report
        self._pending = b""
        # For writing too: it has no end while ranks come and go.
        self._fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        loop.on_readable(self._fd, self._read)

    def _read(self) -> None:
        try:
            data = self._pending + os.read(self._fd, _READ_NBYTES)
        except BlockingIOError:  # Somebody else has read it.
            return
        *lines, self._pending = data.split(b"\n")
        if len(self._pending) > _MAX_LINE_NBYTES:
            self._pending = b""
        for line in lines:
            try:
                report = checked(json.loads(line))
            except (ValueError, RecursionError):
                continue  # Somebody else's: it tells nothing.
            self._on_report(report)


def checked(report: Any) -> dict[str, Any]:
    """The report itself, of how far a rank is, or of an event.

    Raises:
        ValueError: If it is none.
    """
    if not isinstance(report, dict) or not _is_count(report.get("rank")):
        raise ValueError("a report names its rank")
    if "event" in report:
        return {"rank": report["rank"], "event": _checked_event(report["event"])}
    for name in _NUMBERS:
        if not _is_number(report.get(name)):
            raise ValueError(f"a report has {name}, a number")
    for name in ("waited_for_s", "waits_for_s"):
        seconds = report.get(name)
        if not isinstance(seconds, dict) or not all(
            len(rank) <= 9 and rank.isdecimal() and _is_number(waited_s)
            for rank, waited_s in seconds.items()
        ):
            raise ValueError(f"a report has {name}, seconds by rank")
    return report


def _checked_event(event: Any) -> dict[str, Any]:
    if not isinstance(event, dict) or not _is_number(event.get("time")):
        raise ValueError("an event has time, in seconds since 1970")
    for name in ("kind", "text"):
        if not isinstance(event.get(name), str):
            raise ValueError(f"an event has {name}, a text")
    return event


def _is_number(value: Any) -> bool:
    # Neither infinite nor more than can be reckoned with.
    return type(value) in (int, float) and 0 <= value < 1 << 63


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 31
