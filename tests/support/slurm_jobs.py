"""What users start in a Slurm."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from pathlib import Path

from support.job import TESTS_DIR
from support.processes import is_alive, wait_until
from support.slurm import Slurm

_ELASTIC = TESTS_DIR.parent / "deploy" / "slurm" / "elastic.sbatch"
# What is behind the command: it has Slurm start the job again if ringrun was killed.
REQUEUES = _ELASTIC.read_text().partition('"$@"\n')[2]


class Jobs:
    """Jobs of one test, whose processes carry a mark.

    Args:
        slurm: Runs them.
        directory: For scripts and what they leave.
        prologue: What each script begins with.
    """

    def __init__(self, slurm: Slurm, directory: Path, prologue: str = "") -> None:
        self.slurm = slurm
        self.directory = directory
        self._prologue = prologue
        self._mark = f"RING_TEST_MARK={secrets.token_hex(8)}"
        name, _, value = self._mark.partition("=")
        self.env = {
            name: value,
            "RING_KERAS_INIT_TIMEOUT_S": "30",
            # The user's home is what hosts share.
            "XDG_CACHE_HOME": str(directory / "cache"),
        }

    def script(self, text: str) -> list[str]:
        """The command that runs a script of Python."""
        file = self.directory / "script.py"
        file.write_text(self._prologue + text)
        return [sys.executable, str(file), str(self.directory)]

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Runs a command of Slurm's to its end."""
        return self.slurm.run(*command, env=self.env)

    def submit(self, text: str, *options: str) -> str:
        """Submits a batch script; the job's number."""
        file = self.directory / "job.sh"
        file.write_text(f"#!/bin/sh\n{text}")
        said = f"--output={self.directory}/output"
        submitted = self.run("sbatch", "--parsable", said, *options, str(file))
        output = self.directory / "output"
        said = output.read_text() if output.exists() else ""
        assert submitted.returncode == 0, submitted.stderr + said
        return submitted.stdout.strip()

    def state(self, job: str) -> str:
        """What Slurm says of a job."""
        return self.run("scontrol", "show", "job", job).stdout

    def batch(self, text: str, *options: str) -> str:
        """Submits a batch script and waits for its end; what it has printed."""
        self.submit(text, "--wait", *options)
        return (self.directory / "output").read_text()

    def wait_for_ranks(self, count: int) -> None:
        """Until so many have noted that they are there."""
        wait_until(
            lambda: len(list(self.directory.glob("rank*"))) == count,
            f"{count} ranks have joined",
        )

    def processes(self) -> list[int]:
        """Those that still run, wherever."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    environment = (entry / "environ").read_bytes()
                except OSError:
                    continue
                if self._mark.encode() in environment:
                    found.append(int(entry.name))
        return [pid for pid in found if is_alive(pid) and pid != os.getpid()]

    def wait_until_none_is_left(self) -> None:
        """Until no process of these jobs runs."""
        wait_until(lambda: not self.processes(), "no process is left", 40)
        assert not (left := self.cards()), f"these files are left: {left}"

    def cards(self) -> list[Path]:
        """The files by which these jobs' ranks find each other."""
        # Other packages keep things beside them.
        found = (self.directory / "cache" / "ring_keras").rglob("*")
        return [path for path in found if path.is_file()]
