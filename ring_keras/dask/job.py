"""A function as the ranks of a job on the workers of a Dask cluster."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import distributed

from ring_keras.dask.rank_task import RankTask
from ring_keras.dask.shards import divide, take_shards
from ring_keras.dask.workers import workers_of
from ring_keras.engines import pickling
from ring_keras.engines.outcomes import Outcome, results_of
from ring_keras.engines.rank_start import places_by_host, rank_variables

__all__ = ["run"]

# How long ranks have to notice by themselves that another one failed.
_NOTICE_S = 10.0
_LOOK_INTERVAL_S = 0.5


def run(
    client: distributed.Client,
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    num_proc: int | None = None,
    env: Mapping[str, str] | None = None,
    start_timeout: float = 120.0,
) -> list[Any]:
    """Runs a function as every rank of a job, each in a process of its own.

    The function calls `ring_keras.init()`, as a script under `ringrun` does. Ranks are
    numbered host by host. The process of each is a child of a worker's task, and
    ends with it: when this call is interrupted, when a rank fails, and when the worker,
    the client or the scheduler ends.

    Args:
        client: Of the cluster.
        fn: What every rank runs. Travels as Dask's own functions do.
        args: Its arguments. `shard(collection)` gives each rank its own part.
        kwargs: Its keyword arguments; the same.
        num_proc: How many ranks; by default one on each worker. More than that share
            workers, as far as these have threads.
        env: Variables that every rank's environment gets.
        start_timeout: How long, in seconds, ranks wait for the others to start.

    Returns:
        What the function returned, by rank.

    Raises:
        RankFailedError: If a rank failed, or was lost with its worker.
        ValueError: If the cluster has too few threads, a collection too few partitions,
            or two of as many rows other partitions.
        distributed.CancelledError: If the scheduler has ended.
    """
    workers = _choose_workers(client, num_proc)
    hosts = [host for _, host in workers]
    addresses = [address for address, _ in workers]
    places = places_by_host(hosts)
    by_rank = sorted(zip(places, addresses, strict=True), key=lambda one: one[0].rank)
    addresses = [address for _, address in by_rank]
    call, collections = take_shards(fn, args, dict(kwargs or {}))
    shares = divide(client, collections, addresses)
    task = RankTask(
        job=f"ring-keras-{secrets.token_hex(8)}",
        call=pickling.dumps(call),
        env=rank_variables(start_timeout, env),
        timeout_s=start_timeout,
    )
    futures = [
        client.submit(
            task.run,
            place,
            shares[place.rank],
            workers=[address],
            key=f"{task.job}-rank-{place.rank}",
            pure=False,
        )
        for place, address in by_rank
    ]
    try:
        return results_of(_outcomes(client, futures, addresses))
    finally:
        client.cancel(futures)


def _choose_workers(
    client: distributed.Client, num_proc: int | None
) -> list[tuple[str, str]]:
    """The address and host of each rank's worker."""
    workers = workers_of(client)
    room = {address: int(info["nthreads"]) for address, info in workers.items()}
    if num_proc is None:
        num_proc = len(workers)
    if not 1 <= num_proc <= sum(room.values()):
        raise ValueError(
            f"num_proc={num_proc}: the cluster has {len(workers)} workers with "
            f"{sum(room.values())} threads in all, and each rank takes one."
        )
    # Host by host, so that ranks share memory; each worker first gets one.
    ordered = sorted(room, key=lambda address: workers[address]["host"])
    chosen: list[str] = []
    while len(chosen) < num_proc:
        chosen += [
            address for address in ordered if chosen.count(address) < room[address]
        ]
    return [(address, workers[address]["host"]) for address in chosen[:num_proc]]


def _outcomes(
    client: distributed.Client,
    futures: Sequence[distributed.Future],
    addresses: Sequence[str],
) -> list[Outcome]:
    """How each rank ended; not before a failure's cause can be told."""
    outcomes: dict[int, Outcome] = {}
    deadline: float | None = None
    while len(outcomes) < len(futures):
        waiting = [f for rank, f in enumerate(futures) if rank not in outcomes]
        with contextlib.suppress(distributed.TimeoutError):
            distributed.wait(waiting, _LOOK_INTERVAL_S, "FIRST_COMPLETED")
        try:
            present = set(workers_of(client))
        except OSError:  # Then the client gives the futures up.
            present = set(addresses)
        for rank, future in enumerate(futures):
            if rank in outcomes:
                continue
            if future.done():
                outcomes[rank] = _outcome_of(future)
            elif addresses[rank] not in present:
                lost = f"was lost with its Dask worker {addresses[rank]}"
                outcomes[rank] = Outcome(failure=lost)
        if deadline is None and any(one.failure for one in outcomes.values()):
            deadline = time.monotonic() + _NOTICE_S
        if deadline is not None and time.monotonic() > deadline:
            break
    stopped = Outcome(failure="was stopped", follows=True)
    return [outcomes.get(rank, stopped) for rank in range(len(futures))]


def _outcome_of(future: distributed.Future) -> Outcome:
    if future.status == "finished":
        outcome: Outcome = future.result()
        return outcome
    error = future.exception() if future.status == "error" else None
    return Outcome(failure=f"could not be run: {error or future.status}")
