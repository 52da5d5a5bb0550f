"""What agents need of a launcher, where there is no job."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path

from ring_keras.config import HEARTBEAT_S
from ring_keras.launch.crew import Crew
from ring_keras.launch.desk import Desk, LaunchOptions
from ring_keras.launch.guard import kill_descendants
from ring_keras.launch.job_watch import JobWatch
from ring_keras.launch.loop import Loop
from ring_keras.launch.output import OutputPump
from ring_keras.launch.watch_options import WatchOptions

__all__ = ["open_desk"]

_OPTIONS = LaunchOptions(
    grace_period_s=0.0,
    output_directory=None,
    colour=False,
    verbose=False,
    timestamps=False,
    raw=True,
    watch=WatchOptions(status=False, event_log=None, metrics=None),
    encrypt=False,
    heartbeat_s=HEARTBEAT_S,
)


def open_desk(front_fd: int, directory: Path) -> Desk:
    """What crews without ranks need.

    Args:
        front_fd: Reads end of file once the front has died.
        directory: For files.
    """
    loop = Loop(front_fd, directory, _take_signal)
    output = OutputPump(
        None, colour=False, timestamps=False, raw=True, on_broken=_nothing
    )
    crews: list[Crew] = []

    def run_until(condition: Callable[[], bool], timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while not condition():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            loop.turn(left)
        return True

    return Desk(
        options=_OPTIONS,
        loop=loop,
        token=secrets.token_bytes(32),
        token_file=directory / "token",  # No rank will read it.
        output=output,
        watch=JobWatch(_OPTIONS.watch, loop, directory, output, lambda: None),
        crews=crews,
        on_end=lambda _worker: None,
        interrupt=_take_signal,
        run_until=run_until,
    )


def _take_signal(number: int) -> None:
    """Nothing has to be saved."""
    kill_descendants()
    os._exit(128 + number)


def _nothing() -> None:
    """Nothing is shown through it."""
