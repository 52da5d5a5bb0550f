"""The ranks' processes."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

_EXEC_RANK = str(Path(__file__).with_name("exec_rank.py"))


@dataclass
class Worker:
    """One rank's process, on this host or another; the leader of its own session.

    Attributes:
        rank: The rank.
        host_name: How messages call its host.
        deliver: Gets a signal's number to it and to what it started.
        pid: Its process on its host; 0 until that is known.
        started_at: On the monotonic clock.
        ended_at: The same, None while it runs.
        returncode: Negative for a signal; None while it runs.
        remark: What else is known of its end, to follow how it ended.
        told_to_stop: Whether it got a signal from us before it ended.
        lost_with: Which host is gone, and why; None unless that was its end.
        told_by_host: Why its host has ended it; None if it has not.
        leaving: Whether its place shall be given back, once the others do without it.
        outlived: Whether the others have gone on without it.
        may_run: Whether it is lost with a host that may only be cut off.
    """

    rank: int
    host_name: str
    deliver: Callable[[int], None]
    pid: int = 0
    started_at: float = field(default_factory=time.monotonic)
    ended_at: float | None = None
    returncode: int | None = None
    remark: str = ""
    told_to_stop: bool = False
    lost_with: str | None = None
    told_by_host: str | None = None
    leaving: bool = False
    outlived: bool = False
    may_run: bool = False

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self.returncode is None

    @property
    def failed(self) -> bool:
        """Whether it ended badly, not because we stopped it, and was needed."""
        ended_badly = self.returncode not in (None, 0) and not self.told_to_stop
        return ended_badly and not self.outlived

    @property
    def seconds(self) -> float:
        """How long it has run."""
        return (self.ended_at or time.monotonic()) - self.started_at

    def end(self, returncode: int, remark: str = "") -> None:
        """Notes that it ended."""
        self.ended_at = time.monotonic()
        self.returncode = returncode
        self.remark = remark

    def lose(self, reason: str) -> None:
        """Notes that its host is gone, and nobody will know how it ended."""
        self.lost_with = reason
        self.end(1)

    def signal(self, number: int) -> None:
        """Signals the process and what it started, while it runs."""
        # Once it has been reaped, its pid may be somebody else's.
        if self.running:
            self.told_to_stop = True
            self.deliver(number)

    def pass_on(self, number: int) -> None:
        """Gives them a signal that is not ours, while the process runs."""
        if self.running:
            self.deliver(number)


class Started(NamedTuple):
    """A rank's process, and where what it prints is to be read."""

    pid: int
    stdout_fd: int
    stderr_fd: int


def start_rank(
    command: Sequence[str], environment: Mapping[str, str], cpus: Sequence[int] = ()
) -> Started:
    """Starts `command` as a rank, in a session of its own, without input.

    It may run on the processors `cpus` alone; if there are none, on any.

    Must be called from the main thread: the rank dies with the thread that
    started it.
    """
    # -I and -S: no file of the user's, and no site-packages, before the command.
    arguments = [sys.executable, "-I", "-S", _EXEC_RANK, str(os.getpid())]
    arguments += [",".join(map(str, cpus)), *command]
    stdout_read, stdout_write = os.pipe()
    stderr_read, stderr_write = os.pipe()
    try:
        pid = os.posix_spawn(
            sys.executable,
            arguments,
            environment,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, stdout_write, 1),
                (os.POSIX_SPAWN_DUP2, stderr_write, 2),
            ],
            setsid=True,
            setsigmask=[],
            setsigdef=[signal.SIGINT, signal.SIGTERM, signal.SIGHUP],
        )
    except BaseException:
        os.close(stdout_read)
        os.close(stderr_read)
        raise
    finally:
        os.close(stdout_write)
        os.close(stderr_write)
    return Started(pid, stdout_read, stderr_read)


def signal_group(pid: int, number: int) -> None:
    """Signals a rank of this host, and what it started, as far as this user may."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def how_ended(returncode: int) -> str:
    """In words, to follow a rank's name."""
    if returncode < 0:
        return f"was killed by {signal_name(-returncode)}"
    return f"exited with code {returncode}"


def signal_name(number: int) -> str:
    """Such as SIGKILL."""
    try:
        return signal.Signals(number).name
    except ValueError:  # A real-time signal.
        return f"signal {number}"


def exit_status(returncode: int) -> int:
    """As a shell reports it: 128 plus the signal."""
    return 128 - returncode if returncode < 0 else returncode
