"""A function as the ranks of a job that outlives them, on Ray's nodes."""

from __future__ import annotations

import contextlib
import os
import pickle
import secrets
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

_EXEC_RANK = str(Path(__file__).parent.with_name("launch") / "exec_rank.py")
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
        ValueError: If the numbers of workers or CPUs make no sense.
    """
    max_workers = min_workers if max_workers is None else max_workers
    if not 1 <= min_workers <= max_workers or cpus_per_worker < 1:
        raise ValueError(
            "A job has at least one worker, and min_workers <= max_workers; each takes "
            f"at least one CPU. Received: min_workers={min_workers}, "
            f"max_workers={max_workers}, cpus_per_worker={cpus_per_worker}"
        )
    options = ["--elastic-timeout", f"{elastic_timeout:g}"]
    if reset_limit is not None:
        options += ["--reset-limit", str(reset_limit)]
    if cooldown_range is not None:
        words = (f"{seconds:g}" for seconds in cooldown_range)
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
        threads = {"TF_NUM_INTRAOP_THREADS": str(settings.cpus_per_worker)}
        actor = ray.remote(AgentActor).options(num_cpus=settings.cpus_per_worker)
        agents = Agents(
            lambda: actor.remote(token, call, threads | dict(settings.env)),
            settings.max_workers,
        )
        with (
            tempfile.TemporaryDirectory(prefix="ring_keras-") as directory,
            secret_file(token.hex()) as secret,
        ):
            try:
                code = self._follow(agents, HostFiles(Path(directory), secret))
                reports = agents.reports()
            except StillbornError as error:
                return RankFailedError(None, str(error))
            finally:
                agents.end()
        results = [
            report.outcome.result
            for report in sorted(reports, key=_place)
            if report.outcome.result is not None
        ]
        # Who failed before, and was replaced, does not matter.
        if code == 0 and results:
            return results
        return _failure(code, reports, agents.losses)

    def _follow(self, agents: Agents, files: HostFiles) -> int:
        """Runs ringrun, which is told what hosts there are; its exit code."""
        settings = self._settings
        command = [sys.executable, "-m", "ring_keras.launch"]
        command += ["--min-np", str(settings.min_workers)]
        command += ["--max-np", str(settings.max_workers), *settings.options]
        command += files.options()
        # Where all ranks of a host share memory: each has an agent of its own there.
        command += ["-x", "RING_KERAS_HOST_NAME="]
        command += ["--launcher-address", ray.util.get_node_ip_address()]
        command += [sys.executable, "-m", "ring_keras.engines.elastic_rank"]
        # Ray's own, which says how many threads this actor has.
        environment = inherited_environment()
        environment.pop("OMP_NUM_THREADS", None)
        with subprocess.Popen(
            [sys.executable, "-I", "-S", _EXEC_RANK, str(os.getpid()), "", *command],
            stdin=subprocess.DEVNULL,
            env=environment,
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


def _failure(code: int, reports: Sequence[Report], losses: Sequence[str]) -> Exception:
    """Names the process that failed first, and of its own accord."""
    failed = [report for report in reports if report.outcome.failure]
    if not failed:
        how = "\n".join([f"ringrun {how_ended(code)}", *losses])
        return RankFailedError(None, f"{how}\nWhat it said is in the log.")
    first = min(failed, key=lambda one: (one.outcome.follows, one.outcome.ended_at))
    who = f"process {first.number}" if first.rank is None else f"rank {first.rank}"
    outcome = first.outcome
    return RankFailedError(first.rank, f"{who} {outcome.failure}", outcome.details)


def _place(report: Report) -> tuple[bool, int]:
    if report.rank is None:
        return True, report.number
    return False, report.rank
