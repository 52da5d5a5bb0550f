"""What a process must be told to be a rank."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ring_keras.config import Config, ScheduledRank, inherited_environment
from ring_keras.engines.secret_file import secret_file
from ring_keras.launch.addresses import host_port
from ring_keras.launch.environment import added_variables, hash_seed, job_variables
from ring_keras.launch.places import GENERATION, Place, places_of
from ring_keras.schedulers.addresses import own_address
from ring_keras.schedulers.store_card import StoreCard
from ring_keras.schedulers.store_start import start_store

__all__ = ["RankStart", "places_by_host", "rank_variables", "start_rank_store"]


def rank_variables(
    start_timeout_s: float, env: Mapping[str, str] | None
) -> dict[str, str]:
    """What all ranks of a job get; `env` is what the user gives."""
    own = dict(env or {})
    return {
        "RING_KERAS_INIT_TIMEOUT_S": f"{start_timeout_s:g}",
        **hash_seed(inherited_environment() | own),
        **own,
    }


def places_by_host(hosts: Sequence[str]) -> list[Place]:
    """Numbers workers host after host, as ranks that share memory must be.

    Args:
        hosts: Of each worker, in the engine's order.

    Returns:
        The place of each, in the same order. The first worker is rank 0; those of a
        host keep their order, and so do the hosts.
    """
    workers: dict[str, list[int]] = {}
    for worker, host in enumerate(hosts):
        workers.setdefault(host, []).append(worker)
    places = places_of([len(those) for those in workers.values()])
    placed = {
        worker: place
        for those, of_host in zip(workers.values(), places, strict=True)
        for worker, place in zip(those, of_host, strict=True)
    }
    return [placed[worker] for worker in range(len(hosts))]


def start_rank_store(place: Place, starter: str, reach: str) -> StoreCard:
    """Starts the job's store, for rank 0 in its own process.

    It runs in a child of this process, and ends after it and after every other rank.

    Args:
        place: Rank 0's.
        starter: The engine's name, for messages.
        reach: Host name or address by which other hosts reach this one.

    Returns:
        Where it is, and the job's secret: for the other ranks, and for nobody else.

    Raises:
        ConfigError: If it cannot be started, or there is no address for it.
    """
    config = Config.from_environment()
    own = ScheduledRank(
        rank=place.rank,
        size=place.size,
        local_rank=place.local_rank,
        local_size=place.local_size,
        starter=starter,
        job="",
        reach=reach,
    )
    deadline = time.monotonic() + config.init_timeout_s
    address = own_address(config, own)
    return start_store(config, address, place.size, None, deadline)


@dataclass(frozen=True)
class RankStart:
    """All of it.

    Attributes:
        place: Which rank it is.
        card: Where the job's store is.
    """

    place: Place
    card: StoreCard

    @contextlib.contextmanager
    def in_environment(self) -> Iterator[None]:
        """This process is that rank: meanwhile `init()` finds all it needs.

        What the environment said before comes back.
        """
        with secret_file(self.card.token) as token_file:
            # Dask sets it to 1, for what it runs in threads of its own.
            inherited = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
            added = added_variables(
                size=self.place.local_size, inherited=inherited, chosen={}
            ) | job_variables(
                self.place,
                store_address=host_port(self.card.host, self.card.port),
                token_file=token_file,
                generation=GENERATION,
            )
            before = {name: os.environ.get(name) for name in added}
            os.environ.update(added)
            try:
                yield
            finally:
                for name, value in before.items():
                    if value is None:
                        os.environ.pop(name, None)
                    else:
                        os.environ[name] = value
