"""What agents need of a launcher, where there is no job."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from signal import SIGCHLD

from ring_keras.config import HEARTBEAT_S
from ring_keras.launch.crew import Crew
from ring_keras.launch.desk import Desk, LaunchOptions
from ring_keras.launch.guard import kill_descendants, reap
from ring_keras.launch.job_watch import JobWatch
from ring_keras.launch.loop import Loop
from ring_keras.launch.output import OutputPump
from ring_keras.launch.watch_options import WatchOptions

__all__ = ["Office"]

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


class Office:
    """A desk, and the loop that serves it.

    Args:
        front_fd: Reads end of file once the front has died.
        directory: For files.
    """

    def __init__(self, front_fd: int, directory: Path) -> None:
        self._crews: list[Crew] = []
        self._loop = Loop(front_fd, directory, _take_signal)
        output = OutputPump(
            None, colour=False, timestamps=False, raw=True, on_broken=_nothing
        )
        self.desk = Desk(
            options=_OPTIONS,
            loop=self._loop,
            token=secrets.token_bytes(32),
            token_file=directory / "token",  # No rank will read it.
            output=output,
            watch=JobWatch(_OPTIONS.watch, self._loop, directory, output, lambda: None),
            crews=self._crews,
            on_end=lambda _worker: None,
            interrupt=_take_signal,
            run_until=self.run_until,
        )

    def run_until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Turns the loop until a condition holds; False if it did not in that time."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._loop.turn(left)
            while (ended := reap()) is not None:
                for crew in self._crews:
                    crew.reaped(ended)
        return True


def _take_signal(number: int) -> None:
    """Nothing has to be saved."""
    if number != SIGCHLD:
        kill_descendants()
        os._exit(128 + number)


def _nothing() -> None:
    """Nothing is shown through it."""
