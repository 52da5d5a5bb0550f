"""Writes down what happens in a job."""

from __future__ import annotations

import errno
import json
import os
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["EventLog", "require_writable"]

# How long a file may take to open before the job begins without it, and the last
# events to be written once the job has ended. A pipe that nobody reads takes forever.
_OPEN_S = 1.0
_LAST_S = 2.0
_MOST_WAITING = 10_000


class EventLog:
    """Appends events to a file. A full disk costs the file, not the job.

    From a thread of its own: a pipe whose reader stalls, or a file system that does,
    must not hold up the launcher.

    Args:
        path: The file; None: nobody reads.
        say: Tells the user; from any thread.

    Raises:
        OSError: If it cannot be opened.
    """

    def __init__(self, path: Path | None, say: Callable[[str], None]) -> None:
        self._path = path
        self._say = say
        self._waiting: queue.Queue[bytes | None] = queue.Queue(_MOST_WAITING)
        self._leaves_out = False
        self._lock = threading.Lock()  # Of the following two.
        self._problem: OSError | None = None
        self._goes_on = False
        if path is None:
            return
        tried = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(path, tried), name="events", daemon=True
        )
        self._thread.start()
        tried.wait(_OPEN_S)
        with self._lock:
            if self._problem is not None:
                raise self._problem
            self._goes_on = True

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
        if self._path is None or self._problem is not None:
            return
        when = time.time() if at is None else at
        event = {"time": round(when, 3), "rank": rank, "kind": kind}
        line = json.dumps({**event, "text": text}) + "\n"
        try:
            self._waiting.put_nowait(line.encode())
        except queue.Full:
            if not self._leaves_out:
                self._leaves_out = True
                self._say(
                    f"{self._path} does not take events as fast as they come: some "
                    "are left out; the job goes on"
                )

    def close(self) -> None:
        """Nothing will be added any more; returns soon, whether all is written or not.

        At most once.
        """
        if self._path is None:
            return
        deadline = time.monotonic() + _LAST_S
        try:
            self._waiting.put(None, timeout=_LAST_S)
            self._thread.join(max(0.0, deadline - time.monotonic()))
        except queue.Full:
            pass
        if self._thread.is_alive():
            self._say(
                f"{self._path} has not taken the last events within {_LAST_S:g} s: it "
                "is incomplete"
            )

    def _run(self, path: Path, tried: threading.Event) -> None:
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            fd = os.open(path, flags, 0o666)
        except OSError as error:
            self._fail(error)
            return
        finally:
            tried.set()
        try:
            while (line := self._waiting.get()) is not None:
                # At once, so that lines of several jobs in one file do not mix.
                os.write(fd, line)
        except OSError as error:
            self._fail(error)
        finally:
            os.close(fd)

    def _fail(self, error: OSError) -> None:
        with self._lock:
            self._problem = error
            goes_on = self._goes_on
        if goes_on:  # Else who opens it is told.
            self._say(
                f"cannot write {self._path} ({error.strerror}): it is incomplete; "
                "the job goes on"
            )


def require_writable(path: Path) -> None:
    """Raises OSError if it cannot be written; makes it if it is not there."""
    if not path.is_fifo():
        path.open("a").close()
    elif not os.access(path, os.W_OK):
        # To open a pipe, and to close it, would tell its reader that this is the end.
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
