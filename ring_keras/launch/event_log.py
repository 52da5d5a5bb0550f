"""What happened in a job, as lines of JSON for a program to read."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from ring_keras.launch.output import say

__all__ = ["EventLog"]


class EventLog:
    """Appends events to a file. A full disk costs the file, not the job.

    Args:
        path: The file; None: nobody reads.

    Raises:
        OSError: If it cannot be opened.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._fd: int | None = None
        if path is not None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._fd = os.open(path, flags, 0o666)

    def add(
        self,
        kind: str,
        text: str,
        rank: int | None = None,
        at: float | None = None,
    ) -> None:
        """Adds one event.

        Args:
            kind: "membership": a rank began or ended; "fault": one failed, or the job;
                or what a rank says.
            text: A sentence.
            rank: Whose it is; None: the whole job's.
            at: When it was, in seconds since 1970. Defaults to now.
        """
        if self._fd is None:
            return
        when = time.time() if at is None else at
        event = {"time": round(when, 3), "rank": rank, "kind": kind}
        line = json.dumps({**event, "text": text}) + "\n"
        try:
            # At once, so that lines of several jobs in one file do not mix.
            os.write(self._fd, line.encode())
        except OSError as error:
            say(
                f"cannot write {self._path} ({error.strerror}): it is incomplete; "
                "the job goes on"
            )
            os.close(self._fd)
            self._fd = None
