"""Ranks that are told who they are as Open MPI's are, without Open MPI."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from support.job import light_environment
from support.processes import wait_until

# `join()` is `ring.init()` without TensorFlow's seconds.
_PROLOGUE = """\
import os, signal, sys, time
from pathlib import Path
import numpy as np
from ring_keras import _native
from ring_keras.config import Config
from ring_keras.schedulers import store_options
rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
size = int(os.environ["OMPI_COMM_WORLD_SIZE"])
here = Path(__file__).parent
def join():
    # Errors are then RuntimeErrors whose text begins with their class.
    sys.modules["tensorflow"] = None
    config = Config.from_environment()
    _native.init(**config.init_options() | store_options(config))
def total(name):
    return _native.allreduce(np.array([rank + 1.0], np.float32), name=name).tolist()
def note(name, text=""):
    unfinished = here / (name + ".unfinished")
    unfinished.write_text(str(text))
    unfinished.rename(here / name)
def wait_for(name):
    deadline = time.monotonic() + 60
    while not (here / name).exists():
        assert time.monotonic() < deadline, name
        time.sleep(0.01)
"""
_NUMBERS = itertools.count()


class Ranks:
    """Starts the ranks of one job, and leaves none behind."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.rendezvous_dir = directory / "rendezvous"
        self._name = f"prterun-{os.getpid()}-{next(_NUMBERS)}@1"
        self._started: list[subprocess.Popen[str]] = []

    def start(
        self,
        rank: int,
        script: str,
        size: int = 2,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[str]:
        """Starts `script`, some lines of Python, as one rank."""
        file = self.directory / "script.py"
        file.write_text(_PROLOGUE + textwrap.dedent(script))
        return self.start_raw(rank, [sys.executable, str(file)], size, env)

    def start_raw(
        self,
        rank: int,
        command: list[str],
        size: int = 2,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[str]:
        """Starts a command as one rank."""
        variables = {
            "OMPI_COMM_WORLD_RANK": str(rank),
            "OMPI_COMM_WORLD_SIZE": str(size),
            "OMPI_COMM_WORLD_LOCAL_RANK": str(rank),
            "OMPI_COMM_WORLD_LOCAL_SIZE": str(size),
            "PMIX_NAMESPACE": self._name,
            "RING_KERAS_RENDEZVOUS_DIR": str(self.rendezvous_dir),
            "RING_KERAS_INIT_TIMEOUT_S": "30",
        }
        process = subprocess.Popen(
            command,
            env=light_environment() | variables | dict(env or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.append(process)
        return process

    def run(self, script: str, size: int = 2) -> list[str]:
        """Starts all ranks; what each printed, once all have ended well."""
        processes = [self.start(rank, script, size) for rank in range(size)]
        outputs = [process.communicate(timeout=120) for process in processes]
        for process, (_, errors) in zip(processes, outputs, strict=True):
            assert process.returncode == 0, errors
        return [output for output, _ in outputs]

    def noted(self, name: str) -> str:
        """What a rank's `note(name, ...)` said, once it has."""
        path = self.directory / name
        wait_until(path.exists, f"a rank noted {name}")
        return path.read_text()

    def cards(self) -> list[Path]:
        """The files in which ranks find the store."""
        return list(self.rendezvous_dir.glob("ring_keras-*/*"))

    def card(self) -> Path:
        """The one in which they find the store, once it is there."""

        def whole() -> list[Path]:
            return [path for path in self.cards() if not path.name.startswith(".")]

        wait_until(whole, "the card is there")
        (card,) = whole()
        return card

    def stores(self) -> list[int]:
        """Processes that serve a store for these ranks, or for any that they start."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                command = (entry / "cmdline").read_bytes()
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue
            if b"store_process.py" in command and self._name.encode() in environment:
                found.append(int(entry.name))
        return found

    def close(self) -> None:
        """Kills those that still run, and their store, which would follow later."""
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.communicate(timeout=30)
        for pid in self.stores():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    started = Ranks(tmp_path)
    yield started
    started.close()
