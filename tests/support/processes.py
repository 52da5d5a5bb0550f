"""Looks at other processes, with a deadline on every wait."""

from __future__ import annotations

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
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(b")")[2].split()[0] not in (b"Z", b"X")


def wait_until_dead(pids: list[int], timeout_s: float = 10) -> None:
    """Waits until none of the processes runs."""
    wait_until(
        lambda: not any(map(is_alive, pids)),
        f"processes {pids} have ended",
        timeout_s,
    )
