"""A function as the ranks of a job that outlives them, on Ray's nodes."""

from __future__ import annotations

import pickle
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ring_keras.engines.elastic_job import (
    ElasticSettings,
    elastic_results,
    elastic_settings,
    run_ringrun,
)
from ring_keras.engines.outcomes import RankFailedError
from ring_keras.engines.secret_file import secret_file
from ring_keras.ray.agents import AgentActor, Agents, StillbornError

__all__ = ["run_elastic"]


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
    settings = elastic_settings(
        min_workers=min_workers,
        max_workers=max_workers,
        cpus_per_worker=cpus_per_worker,
        env=env,
        elastic_timeout=elastic_timeout,
        reset_limit=reset_limit,
        cooldown_range=cooldown_range,
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

    def __init__(self, settings: ElasticSettings) -> None:
        self._settings = settings

    def run(self, call: bytes) -> list[bytes] | RankFailedError:
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
                address = ray.util.get_node_ip_address()
                code = run_ringrun(settings, address, secret, agents.advance)
                return elastic_results(code, agents.outcomes(), agents.losses)
            except StillbornError as error:
                return RankFailedError(None, str(error))
            finally:
                agents.end()
