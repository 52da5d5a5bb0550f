"""What a worker of Dask's does for one rank."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Sequence
from urllib.parse import urlsplit

import distributed
from distributed import Variable, get_worker

from ring_keras.engines.function_process import FunctionProcess
from ring_keras.engines.outcomes import Outcome
from ring_keras.engines.rank_start import RankStart
from ring_keras.launch.places import Place
from ring_keras.schedulers.store_card import StoreCard

__all__ = ["RankTask"]

_ASK_INTERVAL_S = 0.5


class _GivenUpError(Exception):
    """Nobody waits for the task any more."""


@dataclasses.dataclass(frozen=True)
class RankTask:
    """What all ranks of a job have in common.

    Attributes:
        job: The name by which they find what rank 0 says.
        call: The function, pickled.
        env: Variables that each rank gets.
        timeout_s: How long the others wait for rank 0.
    """

    job: str
    call: bytes
    env: dict[str, str]
    timeout_s: float

    def run(self, place: Place, shares: Sequence[object]) -> Outcome:
        """Carries a rank out, in the thread of a task; `shares`: of its collections."""
        look = _look_of_this_task()
        try:
            with FunctionProcess(self.env) as process:
                card = self._card(process, place, look)
                if isinstance(card, Outcome):
                    return card
                process.load(self.call, "cloudpickle", shares)
                return process.run(RankStart(place, card), look)
        except _GivenUpError:
            return Outcome(failure="was given up", follows=True)

    def _card(
        self, process: FunctionProcess, place: Place, look: functools.partial[None]
    ) -> StoreCard | Outcome:
        told = Variable(self.job)
        if place.rank == 0:
            reach = urlsplit(get_worker().address).hostname or ""
            card = process.start_store(place, "Dask", reach)
            if isinstance(card, StoreCard):
                told.set(card.to_text())
            return card
        deadline = time.monotonic() + self.timeout_s
        while time.monotonic() < deadline:
            look()
            try:
                return StoreCard.from_text(told.get(timeout=_ASK_INTERVAL_S))
            except distributed.TimeoutError:
                continue
        return Outcome(
            failure=f"waited {self.timeout_s:g} s for rank 0, which has not started: "
            "is its worker busy with other tasks?",
            follows=True,
        )


def _look_of_this_task() -> functools.partial[None]:
    worker = get_worker()
    return functools.partial(_look, worker, worker.get_current_task())


def _look(worker: object, key: object) -> None:
    """Raises once the task is cancelled, or its client is gone."""
    task = worker.state.tasks.get(key)  # type: ignore[attr-defined]
    if task is None or task.state != "executing":
        raise _GivenUpError
