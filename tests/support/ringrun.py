"""Runs real `ringrun` processes on small scripts."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from support.processes import wait_until

# Every script can say who it is, and wait to be ended.
PROLOGUE = """\
import os, signal, subprocess, sys, time
from pathlib import Path
rank = int(os.environ["RING_KERAS_RANK"])
size = int(os.environ["RING_KERAS_SIZE"])
here = Path(__file__).parent
def note(name, text=""):
    unfinished = here / f"{name}.{os.getpid()}"
    unfinished.write_text(str(text))
    unfinished.rename(here / name)
def wait_until(condition, what):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)
def wait_for(name):
    wait_until((here / name).exists, name)
def wait_for_the_end_of(name):
    # By the pid noted there; it is gone once ringrun has seen its end.
    wait_for(name)
    process = Path("/proc", (here / name).read_text())
    wait_until(lambda: not process.exists(), f"the end of {name}")
def wait_to_be_ended():
    # A signal that comes just before a sleep is not seen until that is over.
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        time.sleep(0.05)
    sys.exit("nobody ended this rank")
"""


@dataclass(frozen=True)
class Finished:
    """A ringrun that has ended."""

    returncode: int
    stdout: bytes
    stderr: bytes

    @property
    def verdict(self) -> str:
        """The last line of ringrun's own."""
        lines = self.stderr.decode(errors="replace").splitlines()
        own = [line for line in lines if line.startswith("ringrun: ")]
        return own[-1] if own else ""


class Ringrun:
    """Starts ringrun in a directory of its own, and leaves none behind.

    Args:
        directory: For scripts and what they note.
        prefix: The words before each ringrun command, which put it on a host, say.
    """

    def __init__(self, directory: Path, prefix: Sequence[str] = ()) -> None:
        self.directory = directory
        self._prefix = prefix
        self.temporary = directory / "temporary"
        self.temporary.mkdir(exist_ok=True)
        self._started: list[subprocess.Popen[bytes]] = []

    def start(
        self,
        script: str,
        *options: str,
        size: int | None = 2,
        env: Mapping[str, str] | None = None,
        stdin: int = subprocess.DEVNULL,
        stdout: int = subprocess.PIPE,
        stderr: int = subprocess.PIPE,
    ) -> subprocess.Popen[bytes]:
        """Starts `script`, some lines of Python, on `size` ranks.

        None: on as many as the options say.
        """
        file = self.directory / "script.py"
        file.write_text(PROLOGUE + textwrap.dedent(script))
        number = [] if size is None else ["-np", str(size)]
        # By env: most scripts of tests do not join the job, of which ringrun would
        # tell if the command were Python.
        command = [*number, *options, "env", sys.executable, str(file)]
        return self.start_raw(
            *command, env=env, stdin=stdin, stdout=stdout, stderr=stderr
        )

    def start_raw(
        self,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        stdin: int = subprocess.DEVNULL,
        stdout: int = subprocess.PIPE,
        stderr: int = subprocess.PIPE,
    ) -> subprocess.Popen[bytes]:
        """Starts ringrun with exactly these arguments."""
        process = subprocess.Popen(
            [*self._prefix, sys.executable, "-m", "ring_keras.launch", *arguments],
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env=os.environ | {"TMPDIR": str(self.temporary)} | dict(env or {}),
            start_new_session=True,
        )
        self._started.append(process)
        return process

    @staticmethod
    def finish(process: subprocess.Popen[bytes], timeout_s: float = 60) -> Finished:
        """Waits for its end."""
        stdout, stderr = process.communicate(timeout=timeout_s)
        return Finished(process.returncode, stdout or b"", stderr or b"")

    def run(
        self,
        script: str,
        *options: str,
        size: int | None = 2,
        env: Mapping[str, str] | None = None,
    ) -> Finished:
        """`start` and `finish`."""
        return self.finish(self.start(script, *options, size=size, env=env))

    def noted(self, name: str) -> str:
        """What a rank's `note(name, ...)` said, once it has."""
        path = self.directory / name
        wait_until(path.exists, f"a rank noted {name}")
        return path.read_text()

    def pids(self, *names: str) -> list[int]:
        """Process ids that ranks noted."""
        return [int(self.noted(name)) for name in names]

    def close(self) -> None:
        """Kills those that still run; their ranks follow.

        What they have said is printed: pytest shows it of a test that failed.
        """
        for process in self._started:
            if process.poll() is None:
                process.kill()
            stderr = process.communicate(timeout=30)[1]
            if stderr:
                print(stderr.decode(errors="replace"))
