"""A function as the ranks of a job that outlives them, which are tasks of Dask's."""

from __future__ import annotations

import pickle
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import distributed

from ring_keras.dask.agent_task import AgentTask
from ring_keras.dask.agent_tasks import AgentTasks
from ring_keras.dask.shards import Shards
from ring_keras.dask.workers import workers_of
from ring_keras.engines import pickling
from ring_keras.engines.agent_desk import AgentDesk
from ring_keras.engines.elastic_job import (
    elastic_results,
    elastic_settings,
    run_ringrun,
)
from ring_keras.engines.outcomes import RankFailedError
from ring_keras.engines.secret_file import secret_file

__all__ = ["run_elastic"]

_ORIGIN = "the address by which the client speaks with the scheduler"


def run_elastic(
    client: distributed.Client,
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    min_workers: int,
    max_workers: int | None = None,
    env: Mapping[str, str] | None = None,
    elastic_timeout: float = 600.0,
    reset_limit: int | None = None,
    cooldown_range: tuple[float, float] | None = None,
) -> list[Any]:
    """Runs a function as the ranks of a job that goes on when some of them are lost.

    The function calls `ring_keras.init()`, and trains with
    `ring_keras.callbacks.Elastic` or `ring_keras.elastic.run`, as a script under
    `ringrun --min-np` does. Each rank is a process below a task that takes a thread of
    a worker, and no worker has two. When a process or a worker is lost, the others keep
    their processes and go on. A worker that joins the cluster gets a rank.

    Args:
        client: Of the cluster.
        fn: What every rank runs. Travels as Dask's own functions do.
        args: Its arguments.
        kwargs: Its keyword arguments.
        min_workers: The fewest ranks with which the job begins, and goes on.
        max_workers: Up to so many, as Dask has workers; by default `min_workers`.
        env: Variables that every rank's environment gets.
        elastic_timeout: Time, in seconds, for the ranks to meet after a change, and
            for Dask to have `min_workers`.
        reset_limit: After so many changes another one ends the job.
        cooldown_range: Seconds until a lost process is replaced, at first and at most:
            they double with each loss. By default 1 and 60.

    Returns:
        What the function returned, by rank, on those that there were at the end.

    Raises:
        RankFailedError: If the job could not go on, or the scheduler has ended.
        ValueError: If a number makes no sense, or an argument is a `shard`.
        OSError: If the scheduler does not answer, or the client cannot listen.
    """
    kwargs = kwargs or {}
    if any(isinstance(value, Shards) for value in (*args, *kwargs.values())):
        raise ValueError(
            "shard() divides a collection among ranks that stay, and those of "
            "run_elastic come and go: have the function read its data itself, and "
            "divide them by ring_keras.data."
        )
    threads = [int(info["nthreads"]) for info in workers_of(client).values()]
    settings = elastic_settings(
        min_workers=min_workers,
        max_workers=max_workers,
        # What each worker can give; one that comes later may have another number.
        cpus_per_worker=min(threads, default=1),
        env=env,
        elastic_timeout=elastic_timeout,
        reset_limit=reset_limit,
        cooldown_range=cooldown_range,
    )
    call = pickling.dumps(partial(fn, *args, **kwargs))
    address = _address_of_client(client)
    token = secrets.token_bytes(32)
    with (
        secret_file(token.hex()) as secret,
        AgentDesk(address, token, engine="Dask", origin=_ORIGIN) as desk,
    ):
        task = AgentTask(desk.card, call, settings.environment())
        with AgentTasks(
            client, task, desk, settings.min_workers, settings.max_workers
        ) as tasks:
            code = run_ringrun(settings, address, secret, tasks.advance)
            outcomes = tasks.dismiss(elastic_timeout)
    problems = [f"{worker}: {text}" for worker, text in tasks.problems.items()]
    results = elastic_results(code, outcomes, [*desk.losses, *problems])
    if isinstance(results, RankFailedError):
        raise results
    return [pickle.loads(result) for result in results]


def _address_of_client(client: distributed.Client) -> str:
    """By which it speaks with the scheduler: where workers reach it, too."""
    address: str = client.scheduler_comm.comm.local_address
    return urlsplit(address).hostname or ""
