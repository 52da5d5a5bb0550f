"""What makes Ray Train's workers the ranks of a job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import ray
from ray.train.backend import Backend, BackendConfig

from ring_keras.engines.rank_start import RankStart, places_by_host, start_rank_store
from ring_keras.launch.places import Place
from ring_keras.ray.worker import become_rank, cease_as_rank, rank_of_a_job

__all__ = ["RingConfig"]


class RingConfig(BackendConfig):
    """Has Ray Train's `DataParallelTrainer` and its like make their workers ranks."""

    @property
    def backend_cls(self) -> type[Backend]:
        """As Ray Train asks for it."""
        return _RingBackend

    @property
    def train_func_context(self) -> Callable[[], AbstractContextManager[None]]:
        """In which each worker calls the function."""
        return rank_of_a_job


class _RingBackend(Backend):
    """Runs in Ray Train's controller."""

    def on_start(self, worker_group: Any, backend_config: BackendConfig) -> None:
        """Before each worker calls the function."""
        workers = worker_group.get_workers()
        places = _places_of(workers)
        # In the worker that is rank 0. The secret travels in arguments and results of
        # Ray's calls, and is nowhere else.
        card = worker_group.execute_single(
            0, start_rank_store, places[0], "Ray", workers[0].metadata.node_ip
        )
        ray.get(
            [
                worker.execute_async(become_rank, RankStart(place, card))
                for worker, place in zip(workers, places, strict=True)
            ]
        )

    def on_shutdown(self, worker_group: Any, backend_config: BackendConfig) -> None:
        """Before the workers are killed, in which the function may still run."""
        worker_group.execute(cease_as_rank)


def _places_of(workers: Sequence[Any]) -> list[Place]:
    """The place of each worker, which has Ray Train's numbers."""
    places = places_by_host([worker.metadata.node_ip for worker in workers])
    for place, worker in zip(places, workers, strict=True):
        theirs = worker.distributed_context
        numbers = (theirs.world_rank, theirs.local_rank, theirs.local_world_size)
        if numbers != (place.rank, place.local_rank, place.local_size):
            raise RuntimeError(
                "Ray Train has not numbered its workers host by host, as ranks that "
                f"share memory must be: rank {theirs.world_rank} is on "
                f"{worker.metadata.node_ip}, as its rank {theirs.local_rank} of "
                f"{theirs.local_world_size}. Are several of Ray's nodes on one host?"
            )
    return places
