"""Looks at other processes, with a deadline on every wait."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

_POLL_S = 0.02


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 30) -> None:
    """Waits for something that another process does.

    Raises:
        AssertionError: If it has not come true in time.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s} s: {what}")
        time.sleep(_POLL_S)


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that waits to be reaped does not."""
    try:
        return _state(Path(f"/proc/{pid}/stat")) not in (b"Z", b"X")
    except (FileNotFoundError, ProcessLookupError):
        return False


def started_at(pid: int) -> float:
    """When it was, in seconds, as `time.time` has it; raises OSError if it is gone."""
    ticks = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
    booted_at = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return booted_at + ticks / os.sysconf("SC_CLK_TCK")


def stop(pid: int) -> None:
    """Stops another process, with all of its threads.

    One thread takes the signal and then stops the others, which run on until it has had
    a processor: on a loaded machine long enough to answer somebody.
    """
    os.kill(pid, signal.SIGSTOP)
    wait_until_stopped(pid)


def wait_until_stopped(pid: int) -> None:
    """Waits for a process that was stopped, or stops itself."""
    tasks = Path(f"/proc/{pid}/task")
    wait_until(
        lambda: all(_state(task / "stat") == b"T" for task in tasks.iterdir()),
        f"process {pid} has stopped",
    )


def _state(stat: Path) -> bytes:
    return stat.read_bytes().rpartition(b")")[2].split()[0]


def wait_until_dead(pids: list[int], timeout_s: float = 10) -> None:
    """Waits until none of the processes runs."""
    wait_until(
        lambda: not any(map(is_alive, pids)),
        f"processes {pids} have ended",
        timeout_s,
    )
