"""What all ranks measure in one `fit`, gathered and written by one of them."""

from typing import Any

from ring_keras.callbacks.session_file import SessionFile
from ring_keras.callbacks.summary_file import SummaryFile
from ring_keras.job.job import current_job
from ring_keras.job.process_set import ProcessSet
from ring_keras.monitoring import records
from ring_keras.monitoring.background_gather import BackgroundGather
from ring_keras.monitoring.events import stalls
from ring_keras.monitoring.meetings import Apart
from ring_keras.monitoring.meter import Meter

__all__ = ["RingSummaries"]

# A step is sent with all its collectives this rarely, after the first ones.
_STEPS_PART = 1 / 20


class RingSummaries:
    """Begun by every rank; `update` and `close` are called in the same order by all.

    Args:
        process_set: The ranks that train together.
        file: Where to write; None on the ranks that do not.
    """

    def __init__(self, process_set: ProcessSet, file: SummaryFile | None) -> None:
        job = current_job()
        assert process_set.process_set_id is not None
        self._process_set = process_set.process_set_id
        self._meter = Meter()
        self._stall_s = job.config.stall_timeout_s
        self._book = job.events
        _, self._told = self._book.since(0)
        self._updates = 0
        self._step_due = records.Thinning(0.0, _STEPS_PART)
        self._session = None if file is None else SessionFile(file, process_set)
        self._gather = BackgroundGather(
            "tensorboard", process_set.communicator_id(), self._receive, self._ended
        )

    def begin(self) -> None:
        """Forgets the steps until now: one that is traced takes seconds."""
        self._meter = Meter()

    def update(
        self, step: int, buckets: list[dict[str, Any]], apart: list[Apart]
    ) -> None:
        """Sends what this rank did since the last update; one with no step is none.

        Args:
            step: Of the optimizer, the same on all ranks.
            buckets: Of the gradients, as `bucket_figures` gives them.
            apart: The meetings of each optimizer whose ranks train apart.
        """
        if self._session is not None:
            self._session.buckets = buckets
        row = self._meter.row()
        waited = self._meter.long_waits(self._stall_s)
        noted, self._told = self._book.since(self._told)
        self._updates += 1
        # The same on all ranks, because it goes by their common count.
        with_step = self._step_due.is_due(self._updates)
        message = {
            "step": step,
            "row": row.to_json(),
            "apart": [one.to_json() for one in apart],
            "last_steps": self._meter.last_steps(self._process_set, step)
            if with_step
            else [],
            "events": [*stalls(row.rank, waited, self._stall_s), *noted],
        }
        self._gather.put(records.encode_record(message))

    def close(self) -> None:
        """Waits until all that was sent has been written."""
        self._gather.close()

    def abandon(self) -> None:
        """For a `fit` that raised: what was sent is written, and nobody waits."""
        self._gather.end()

    def _receive(self, gathered: list[tuple[int, bytes]]) -> None:
        if self._session is not None:
            self._session.write([records.decode_record(c) for _, c in gathered])

    def _ended(self, error: Exception | None) -> None:
        if self._session is not None:
            self._session.end(error)
