"""A function as the ranks of a job that outlives them, on Ray's nodes."""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ring_keras.config import inherited_environment
from ring_keras.engines.elastic_rank import Report
from ring_keras.engines.host_files import HostFiles
from ring_keras.engines.outcomes import RankFailedError
from ring_keras.engines.secret_file import secret_file
from ring_keras.launch.workers import how_ended
from ring_keras.ray.agent_actor import AgentActor
from ring_keras.ray.agents import Agents, StillbornError

__all__ = ["run_elastic"]

_ENDS_WITH_PARENT = str(
    Path(__file__).parent.with_name("engines") / "ends_with_parent.py"
)
_LOOK_INTERVAL_S = 0.5
# Once the fewest are there, how long for more.
_MORE_S = 5.0


@dataclass(frozen=True)
class _Settings:
    """How many ranks, and what each takes.

    Attributes:
        min_workers: The fewest with which the job begins and goes on.
        max_workers: Up to so many as Ray has room for.
        cpus_per_worker: Ray's CPUs that a rank takes.
        env: Variables that each rank gets.
        options: More for ringrun.
    """

    min_workers: int
    max_workers: int
    cpus_per_worker: int = 1
    env: Mapping[str, str] = field(default_factory=dict)
    options: Sequence[str] = ()

    def environment(self) -> dict[str, str]:
        """Of ringrun, and of each rank."""
        return {
            "TF_NUM_INTRAOP_THREADS": str(self.cpus_per_worker),
            "RING_KERAS_DEVICE": "cpu",
            **self.env,
        }


def run_elastic(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    min_workers: int,
    max_workers: int | None = None,
    cpus_per_worker: int = 1,
    env: Mapping[str, str] | None = None,
    elastic_timeout: float = 600.0,
    reset_limit: int | None = None,
    cooldown_range: tuple[float, float] | None = None,
) -> list[Any]:
    """Runs a function as the ranks of a job that goes on when some of them are lost.

    The function calls `ring_keras.init()`, and trains with
    `ring_keras.callbacks.Elastic` or `ring_keras.elastic.run`, as a script under
    `ringrun --min-np` does. Each rank is a process below an actor that holds its
    resources. When a process, an actor or a node is lost, the others keep their
    processes and go on, and another takes its place as soon as Ray has room.

    Args:
        fn: What every rank runs. Travels as Ray's own functions do.
        args: Its arguments.
        kwargs: Its keyword arguments.
        min_workers: The fewest ranks with which the job begins, and goes on.
        max_workers: Up to so many, as Ray has room for; by default `min_workers`.
        cpus_per_worker: How many of Ray's CPUs a rank takes, and as many threads of
            TensorFlow's.
        env: Variables that every rank's environment gets.
        elastic_timeout: Time, in seconds, for the ranks to meet after a change, and
            for Ray to have room for `min_workers`.
        reset_limit: After so many changes another one ends the job.
        cooldown_range: Seconds until a lost process is replaced, at first and at most:
            they double with each loss. By default 1 and 60.

    Returns:
        What the function returned, by rank, on those that there were at the end.

    Raises:
        RankFailedError: If the job could not go on.
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
    settings = _Settings(
        min_workers, max_workers, cpus_per_worker, dict(env or {}), options
    )
    conductor = (
        ray.remote(_Conductor)
        .options(
            num_cpus=0,
            # Beside the caller, with which it ends. Where that may be another node, Ray
            # takes any for what needs no CPU.
            scheduling_strategy=NodeAffinitySchedulingStrategy(
                ray.get_runtime_context().get_node_id(), soft=False
            ),
        )
        .remote(settings)
    )
    try:
        call = ray.cloudpickle.dumps(partial(fn, *args, **(kwargs or {})))
        results = ray.get(conductor.run.remote(call))
    finally:
        ray.kill(conductor)
    if isinstance(results, Exception):
        raise results
    return [pickle.loads(result) for result in results]


class _Conductor:
    """An actor: runs ringrun, and finds room for it."""

    def __init__(self, settings: _Settings) -> None:
        self._settings = settings

    def run(self, call: bytes) -> list[bytes] | Exception:
        """What the function returned, by rank, pickled; or why it has not."""
        settings = self._settings
        token = secrets.token_bytes(32)
        actor = ray.remote(AgentActor).options(num_cpus=settings.cpus_per_worker)
        agents = Agents(
            lambda: actor.remote(token, call, settings.environment()),
            settings.min_workers,
            settings.max_workers,
        )
        with secret_file(token.hex()) as secret:
            try:
                code = self._follow(agents, secret)
                return _results(code, agents.reports(), agents.losses)
            except StillbornError as error:
                return RankFailedError(None, str(error))
            finally:
                agents.end()

    def _follow(self, agents: Agents, secret: str) -> int:
        """Runs ringrun, which is told what hosts there are; its exit code."""
        # What ends with ringrun removes it, too, if this process is killed.
        directory = Path(tempfile.mkdtemp(prefix="ring_keras-"))
        try:
            return self._run_ringrun(agents, directory, HostFiles(directory, secret))
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def _run_ringrun(self, agents: Agents, directory: Path, files: HostFiles) -> int:
        settings = self._settings
        command = [sys.executable, "-m", "ring_keras.launch"]
        command += ["--min-np", str(settings.min_workers)]
        command += ["--max-np", str(settings.max_workers), *settings.options]
        command += files.options()
        # Where all ranks of a host share memory: each has an agent of its own there.
        command += ["-x", "RING_KERAS_HOST_NAME="]
        command += ["--launcher-address", ray.util.get_node_ip_address()]
        command += [sys.executable, "-m", "ring_keras.engines.elastic_rank"]
        environment = inherited_environment()
        # Ray's own, which says how many threads this actor has.
        environment.pop("OMP_NUM_THREADS", None)
        # It stays on this host, and is removed with what ringrun leaves there.
        environment["TMPDIR"] = str(directory)
        ends = [sys.executable, "-I", "-S", _ENDS_WITH_PARENT, str(os.getpid())]
        with subprocess.Popen(
            [*ends, str(directory), *command],
            stdin=subprocess.DEVNULL,
            # It counts more in a rank than what there is on the rank's host.
            env=environment | settings.environment(),
            # A directory that every host has; ranks go to that of their actor.
            cwd="/",
            start_new_session=True,
        ) as ringrun:
            try:
                enough_since = None
                while ringrun.poll() is None:
                    there = agents.advance()
                    if enough_since is None and len(there) >= settings.min_workers:
                        enough_since = time.monotonic()
                    if self._may_begin(len(there), enough_since):
                        with contextlib.suppress(FileNotFoundError):  # It has ended.
                            files.write(there)
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        ringrun.wait(_LOOK_INTERVAL_S)
            except BaseException:
                ringrun.terminate()
                raise
        return ringrun.returncode

    def _may_begin(self, there: int, enough_since: float | None) -> bool:
        """Not with the fewest, if more come at once: each change takes a while."""
        if there >= self._settings.max_workers:
            return True
        return enough_since is not None and time.monotonic() > enough_since + _MORE_S


def _results(
    code: int, reports: Sequence[Report], losses: Sequence[str]
) -> list[bytes] | Exception:
    """Those of the last generation, by rank; of processes, if nobody has joined one."""
    ended = "\n".join(
        [f"ringrun {how_ended(code)}; what it said is in the log", *losses]
    )
    places = [report.place for report in reports if report.place is not None]
    newest = max(places, default=None)
    last = [one for one in reports if newest is None or _is_of(one, newest)]
    if code != 0:
        return _failure(last, ended)
    found = {
        one.number if one.place is None else one.place[1]: one.outcome.result
        for one in last
        if one.outcome.result is not None
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


def _is_of(report: Report, place: tuple[int, int, int]) -> bool:
    """Whether it is of that place's generation."""
    return report.place is not None and report.place[0] == place[0]


def _failure(reports: Sequence[Report], ended: str) -> Exception:
    """Names the process that failed first, and of its own accord."""
    failed = [report for report in reports if report.outcome.failure]
    if not failed:
        return RankFailedError(None, ended)
    first = min(failed, key=lambda one: (one.outcome.follows, one.outcome.ended_at))
    rank = None if first.place is None else first.place[1]
    who = f"process {first.number}" if rank is None else f"rank {rank}"
    text = f"{who} {first.outcome.failure} ({ended})"
    return RankFailedError(rank, text, first.outcome.details)
