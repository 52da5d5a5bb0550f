"""Jobs whose launcher is lost: what is left of them, and who takes them over."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from support.processes import is_alive, wait_until
from support.ringrun import Ringrun

# How long ranks wait for a launcher: this, and 5 s.
OUTAGE_S = "20"


class LostLauncher:
    """A job with a card.

    Args:
        ringrun: Starts it, and those that take it over.
    """

    def __init__(self, ringrun: Ringrun) -> None:
        self._ringrun = ringrun
        self.card = ringrun.directory / "card"
        self.process: subprocess.Popen[bytes]
        """The ringrun that has the job now."""

    def begin(
        self,
        script: str,
        *options: str,
        size: int | None = 2,
        outage_s: str | None = OUTAGE_S,
    ) -> None:
        """Starts it; None: with the times of a user's job."""
        card = ("--card", str(self.card))
        times = {} if outage_s is None else {"RING_KERAS_HEARTBEAT_TIMEOUT_S": outage_s}
        self.process = self._ringrun.start(
            script,
            *card,
            *options,
            size=size,
            env=times,
        )

    def await_card(self) -> None:
        """Until it can be taken over."""
        wait_until(self.card.exists, "the card is there", 60)

    def lose(self) -> None:
        """Kills ringrun, as far as anybody can."""
        self.await_card()
        launcher = launcher_of(self.process.pid)
        self.process.kill()
        self.process.communicate(timeout=30)
        wait_until(lambda: not is_alive(launcher), "its launcher has ended")

    def take_over(
        self, *options: str, card: Path | None = None, by: Ringrun | None = None
    ) -> None:
        """Another ringrun, of another host maybe, has it from now on."""
        path = str(self.card if card is None else card)
        ringrun = self._ringrun if by is None else by
        self.process = ringrun.start_raw("--take-over", path, *options)

    def left(self) -> list[int]:
        """Processes of the job, or that it has left."""
        mark = f"TMPDIR={self._ringrun.temporary}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    variables = (entry / "environ").read_bytes().split(b"\0")
                except OSError:  # It has ended, or is somebody else's.
                    continue
                if mark in variables and is_alive(int(entry.name)):
                    found.append(int(entry.name))
        return found

    def close(self) -> None:
        """Leaves no process behind."""
        while left := self.left():
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            wait_until(lambda left=left: not any(map(is_alive, left)), "they are gone")


def launcher_of(front: int) -> int:
    """The process that does a ringrun's work."""
    children = Path(f"/proc/{front}/task/{front}/children")
    wait_until(lambda: bool(children.read_text().split()), "its launcher has begun")
    return int(children.read_text().split()[0])
