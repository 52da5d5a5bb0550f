"""A function as a job whose hosts are an engine's workers, which come and go."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ring_keras.config import inherited_environment
from ring_keras.engines import call_rank
from ring_keras.engines.call_agent import AGENTS
from ring_keras.engines.outcomes import Outcome, RankFailedError, first_failure
from ring_keras.launch.workers import how_ended

__all__ = ["ElasticSettings", "elastic_results", "elastic_settings", "run_ringrun"]

_CALL_AGENT = str(Path(__file__).with_name("call_agent.py"))
_ENDS_WITH_PARENT = str(Path(__file__).with_name("ends_with_parent.py"))
_LOOK_INTERVAL_S = 0.5
# Once the fewest are there, how long for more.
_MORE_S = 5.0


@dataclass(frozen=True)
class ElasticSettings:
    """Made by `elastic_settings`.

    Attributes:
        min_workers: The fewest with which the job begins and goes on.
        max_workers: Up to so many as the engine has room for.
        cpus_per_worker: Cores that a rank takes.
        env: Variables that each rank gets.
        options: More for ringrun.
    """

    min_workers: int
    max_workers: int
    cpus_per_worker: int
    env: Mapping[str, str]
    options: Sequence[str]

    def environment(self) -> dict[str, str]:
        """Of ringrun, and of each rank."""
        return {
            "TF_NUM_INTRAOP_THREADS": str(self.cpus_per_worker),
            "RING_KERAS_DEVICE": "cpu",
            **self.env,
        }


def elastic_settings(
    *,
    min_workers: int,
    max_workers: int | None,
    cpus_per_worker: int,
    env: Mapping[str, str] | None,
    elastic_timeout: float,
    reset_limit: int | None,
    cooldown_range: tuple[float, float] | None,
) -> ElasticSettings:
    """The settings, by the names that users know.

    Raises:
        ValueError: If a number makes no sense.
    """
    max_workers = min_workers if max_workers is None else max_workers
    if not 1 <= min_workers <= max_workers or cpus_per_worker < 1:
        raise ValueError(
            "A job has at least one worker, and min_workers <= max_workers; each takes "
            f"at least one CPU. Received: min_workers={min_workers}, "
            f"max_workers={max_workers}, cpus_per_worker={cpus_per_worker}"
        )
    cooldown = cooldown_range or (1.0, 60.0)
    if (
        not 0 < elastic_timeout < math.inf
        or (reset_limit is not None and reset_limit < 0)
        or not 0 <= cooldown[0] <= cooldown[1] < math.inf
    ):
        raise ValueError(
            "Times are finite, elastic_timeout is above 0, and reset_limit not below; "
            "cooldown_range has the shorter one first. Received: elastic_timeout="
            f"{elastic_timeout}, reset_limit={reset_limit}, "
            f"cooldown_range={cooldown_range}"
        )
    options = ["--elastic-timeout", f"{elastic_timeout:g}"]
    if reset_limit is not None:
        options += ["--reset-limit", str(reset_limit)]
    words = (f"{seconds:g}" for seconds in cooldown)
    options += ["--blacklist-cooldown-range", *words]
    return ElasticSettings(
        min_workers, max_workers, cpus_per_worker, dict(env or {}), options
    )


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


def elastic_results(
    code: int, outcomes: Sequence[Outcome], losses: Sequence[str]
) -> list[bytes] | RankFailedError:
    """What the function returned, by rank, pickled; or why it has not.

    Those of the last generation; of processes, if nobody has joined one.

    Args:
        code: ringrun's exit code.
        outcomes: Of the processes that had the time to say something.
        losses: How workers ended before that.
    """
    ended = "\n".join(
        [f"ringrun {how_ended(code)}; what it said is in the log", *losses]
    )
    places = [one.place for one in outcomes if one.place is not None]
    newest = max(places, default=None)
    last = [one for one in outcomes if newest is None or _is_of(one, newest)]
    if code != 0:
        return _failure(last, ended)
    found = {
        one.number if one.place is None else one.place[1]: one.result
        for one in last
        if one.result is not None
    }
    size = len(found) if newest is None else newest[2]
    missing = [] if newest is None else [r for r in range(size) if r not in found]
    if missing or not found:
        return RankFailedError(
            missing[0] if missing else None,
            f"the job has ended, but what ranks {missing or 'of it'} returned is lost: "
            f"{ended}",
        )
    return [result for _, result in sorted(found.items())]


def _is_of(one: Outcome, place: tuple[int, int, int]) -> bool:
    """Whether it is of that place's generation."""
    return one.place is not None and one.place[0] == place[0]


def _failure(outcomes: Sequence[Outcome], ended: str) -> RankFailedError:
    """Names the process that failed first, and of its own accord."""
    first = first_failure(outcomes)
    if first is None:
        return RankFailedError(None, ended)
    rank = None if first.place is None else first.place[1]
    who = f"process {first.number}" if rank is None else f"rank {rank}"
    text = f"{who} {first.failure} ({ended})"
    return RankFailedError(rank, text, first.details)
