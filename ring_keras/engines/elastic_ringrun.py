"""ringrun of a job whose hosts are an engine's workers, which come and go."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from ring_keras.config import inherited_environment
from ring_keras.engines import call_rank
from ring_keras.engines.call_agent import AGENTS
from ring_keras.engines.elastic_settings import ElasticSettings

__all__ = ["run_ringrun"]

_CALL_AGENT = str(Path(__file__).with_name("call_agent.py"))
_ENDS_WITH_PARENT = str(Path(__file__).with_name("ends_with_parent.py"))
_LOOK_INTERVAL_S = 0.5
# Once the fewest are there, how long for more.
_MORE_S = 5.0


class _HostFiles:
    """Hosts with a slot each, and where the agent of each waits.

    Args:
        directory: Only this user may enter it.
        secret: The file with what the agents must hear.
    """

    def __init__(self, directory: Path, secret: str) -> None:
        self.directory = directory
        self._secret = secret
        self._hosts = directory / "hosts"
        self._script = directory / "discover"
        self._script.write_text(
            f"#!/bin/sh\nexec cat {shlex.quote(str(self._hosts))}\n"
        )
        self._script.chmod(0o700)
        self.write({})

    def options(self) -> list[str]:
        """Have ringrun read them."""
        shell = [sys.executable, "-I", _CALL_AGENT, str(self.directory)]
        return [
            "--host-discovery-script",
            str(self._script),
            "--remote-shell",
            shlex.join(shell),
        ]

    def write(self, agents: Mapping[str, str]) -> None:
        """These are there now: host and port of each agent by its host's name."""
        told = {"agents": agents, "secret": self._secret, "sys_path": sys.path}
        self._replace(self.directory / AGENTS, json.dumps(told))
        self._replace(self._hosts, "".join(f"{name} slots=1\n" for name in agents))

    def _replace(self, path: Path, text: str) -> None:
        unfinished = path.with_name("unfinished")
        unfinished.write_text(text)
        unfinished.replace(path)


def run_ringrun(
    settings: ElasticSettings,
    address: str,
    secret: str,
    advance: Callable[[], Mapping[str, str]],
) -> int:
    """Runs it to its end, below this process and the calling thread.

    Args:
        settings: Of the job.
        address: Of this host, where ranks reach it.
        secret: The file with what the agents must hear.
        advance: Called twice a second: which agents there are now, by a name that no
            host has. What it raises ends ringrun, and is raised here.

    Returns:
        Its exit code.
    """
    # What ends with ringrun removes it, too, if this process is killed.
    directory = Path(tempfile.mkdtemp(prefix="ring_keras-"))
    try:
        return _follow(settings, address, _HostFiles(directory, secret), advance)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _follow(
    settings: ElasticSettings,
    address: str,
    files: _HostFiles,
    advance: Callable[[], Mapping[str, str]],
) -> int:
    command = [sys.executable, "-m", "ring_keras.launch"]
    command += ["--min-np", str(settings.min_workers)]
    command += ["--max-np", str(settings.max_workers), *settings.options]
    command += files.options()
    # Where all ranks of a host share memory: each has an agent of its own there.
    command += ["-x", "RING_KERAS_HOST_NAME="]
    command += ["--launcher-address", address]
    # Of a process, on whatever host: the engine's Python may be elsewhere there.
    python, own_directory = call_rank.PYTHON, call_rank.DIRECTORY
    call = f'exec "${python}" -m {call_rank.__name__} "${own_directory}"'
    command += ["/bin/sh", "-c", call]
    environment = inherited_environment()
    # The engine's own, which says how many threads its worker has.
    environment.pop("OMP_NUM_THREADS", None)
    # It stays on this host, and is removed with what ringrun leaves there.
    environment["TMPDIR"] = str(files.directory)
    ends = [sys.executable, "-I", "-S", _ENDS_WITH_PARENT, str(os.getpid())]
    with subprocess.Popen(
        [*ends, str(files.directory), *command],
        stdin=subprocess.DEVNULL,
        # It counts more in a rank than what there is on the rank's host.
        env=environment | settings.environment(),
        # A directory that every host has; ranks go to that of their worker.
        cwd="/",
        start_new_session=True,
    ) as ringrun:
        try:
            enough_since = None
            while ringrun.poll() is None:
                there = advance()
                if enough_since is None and len(there) >= settings.min_workers:
                    enough_since = time.monotonic()
                if _may_begin(settings, len(there), enough_since):
                    with contextlib.suppress(FileNotFoundError):  # It has ended.
                        files.write(there)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    ringrun.wait(_LOOK_INTERVAL_S)
        except BaseException:
            ringrun.terminate()
            raise
    return ringrun.returncode


def _may_begin(
    settings: ElasticSettings, there: int, enough_since: float | None
) -> bool:
    """Not with the fewest, if more come at once: each change takes a while."""
    if there >= settings.max_workers:
        return True
    return enough_since is not None and time.monotonic() > enough_since + _MORE_S
