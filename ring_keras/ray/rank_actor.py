"""A rank that is an actor, and stays between two functions."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray

from ring_keras.engines.rank_start import RankStart, start_rank_store
from ring_keras.launch.places import Place
from ring_keras.ray.worker import (
    become_rank,
    cease_as_rank,
    leave_job,
    leaving_on_failure,
)
from ring_keras.schedulers.store_card import StoreCard

__all__ = ["RankActor"]


class RankActor:
    """The actor's process is the rank's own.

    Args:
        env: Variables on top of those that Ray gives.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        os.environ.update(env)
        self._own: Any = None

    def host(self) -> str:
        """The address of its host."""
        return str(ray.util.get_node_ip_address())

    def start_store(self, place: Place, reach: str) -> StoreCard:
        """Starts the job's store; for rank 0."""
        return start_rank_store(place, "Ray", reach)

    def begin(self, start: RankStart) -> None:
        """Makes it that rank."""
        become_rank(start)

    def make(self, cls: type, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Makes the object that functions get."""
        with leaving_on_failure():
            self._own = cls(*args, **kwargs)

    def call(self, function: Callable[[Any], Any]) -> Any:
        """What the function returns, given that object."""
        with leaving_on_failure():
            return function(self._own)

    def end(self) -> None:
        """Leaves the job."""
        leave_job("its executor was shut down")
        cease_as_rank()
