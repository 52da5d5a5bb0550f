"""What a worker of Dask's does for one rank."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from urllib.parse import urlsplit

import cloudpickle
import distributed
from distributed import Event, Variable, get_worker

from ring_keras.dask.task_look import GivenUpError, look_of_this_task
from ring_keras.engines.function_process import FunctionProcess
from ring_keras.engines.outcomes import Outcome
from ring_keras.engines.rank_start import RankStart
from ring_keras.launch.places import Place
from ring_keras.schedulers.store_card import StoreCard

__all__ = ["RankTask"]

_ASK_INTERVAL_S = 0.5
_GET_TIMEOUT_S = 10.0


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
        look = look_of_this_task()
        try:
            with FunctionProcess(self.env) as process, self._told(place):
                card = self._card(process, place, look)
                if isinstance(card, Outcome):
                    return card
                process.load(self.call, cloudpickle.dumps(shares), "cloudpickle")
                return process.run(RankStart(place, card), look)
        except GivenUpError:
            return Outcome(failure="was given up", follows=True)

    @contextlib.contextmanager
    def _told(self, place: Place) -> Iterator[None]:
        """What rank 0 tells the others is gone with it."""
        try:
            yield
        finally:
            if place.rank == 0:
                with contextlib.suppress(Exception):  # There may be no scheduler more.
                    Variable(self.job).delete()
                    Event(self.job).clear()

    def _card(
        self, process: FunctionProcess, place: Place, look: Callable[[], None]
    ) -> StoreCard | Outcome:
        told, is_told = Variable(self.job), Event(self.job)
        if place.rank == 0:
            reach = urlsplit(get_worker().address).hostname or ""
            card = process.start_store(place, "Dask", reach, look)
            look()
            if isinstance(card, StoreCard):
                told.set(card.to_text())
                is_told.set()
            return card
        deadline = time.monotonic() + self.timeout_s
        while not is_told.wait(_ASK_INTERVAL_S):
            look()
            if time.monotonic() > deadline:
                return Outcome(
                    failure=f"waited {self.timeout_s:g} s for rank 0, which has not "
                    "started: is its worker busy with other tasks?",
                    follows=True,
                )
        try:
            return StoreCard.from_text(told.get(timeout=_GET_TIMEOUT_S))
        except distributed.TimeoutError:
            return Outcome(failure="came when rank 0 had ended", follows=True)
