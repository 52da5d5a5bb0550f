"""What a task of Spark's does for one rank."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Iterator

import pyarrow as pa
from pyspark import BarrierTaskContext

from ring_keras.engines.function_process import FunctionProcess
from ring_keras.engines.outcomes import Outcome
from ring_keras.engines.rank_start import RankStart, places_by_host
from ring_keras.launch.places import Place
from ring_keras.schedulers.store_card import StoreCard

__all__ = ["SCHEMA", "RankTask"]

SCHEMA = "rank int, outcome binary"


@dataclasses.dataclass(frozen=True)
class RankTask:
    """What all ranks of a job have in common; the function of a barrier stage.

    Attributes:
        call: The function, pickled.
        env: Variables that each rank gets.
    """

    call: bytes
    env: dict[str, str]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Carries a rank out; what comes in means nothing."""
        for _ in batches:
            pass
        context = BarrierTaskContext.get()
        hosts = [info.address.rpartition(":")[0] for info in context.getTaskInfos()]
        own = context.partitionId()
        place = places_by_host(hosts)[own]
        outcome = self._run(context, place, hosts[own])
        columns = [
            pa.array([place.rank], pa.int32()),
            pa.array([pickle.dumps(outcome)]),
        ]
        yield pa.RecordBatch.from_arrays(columns, names=["rank", "outcome"])

    def _run(self, context: BarrierTaskContext, place: Place, host: str) -> Outcome:
        with FunctionProcess(self.env) as process:
            card: StoreCard | Outcome | None = None
            if place.rank == 0:
                card = process.start_store(place, "Spark", host, _look)
            # An error of rank 0 is told in its own outcome.
            told = context.allGather(
                card.to_text() if isinstance(card, StoreCard) else ""
            )
            if isinstance(card, Outcome):
                return card
            text = "".join(told)
            if not text:
                return Outcome(failure="found no store: rank 0 failed", follows=True)
            process.load(self.call, pickle.dumps(()), "pyspark.cloudpickle")
            start = RankStart(place, StoreCard.from_text(text))
            return process.run(start, _look)


def _look() -> None:
    """A task that is given up is killed, and its rank with it."""
