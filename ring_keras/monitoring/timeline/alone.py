"""A timeline of one rank's own collectives, of which the others know nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ring_keras.errors import RingKerasError
from ring_keras.job.job import current_job
from ring_keras.monitoring.timeline.chrome_file import write_chrome
from ring_keras.monitoring.timeline.clocks import Clock, Offset
from ring_keras.monitoring.timeline.collector import Collector, recording
from ring_keras.monitoring.timeline.merged import RankTimeline

__all__ = ["start_timeline_alone", "stop_timeline_alone"]

_OWN_CLOCK = Clock(Offset(0.0, 0.0, 0.0), Offset(0.0, 0.0, 0.0))


@dataclass
class _Alone:
    path: Path
    records: list[dict[str, Any]]
    collector: Collector

    def end(self) -> None:
        """Writes the file."""
        job = current_job()
        self.collector.stop()
        own = RankTimeline(
            job.rank, job.host, _OWN_CLOCK, self.records, self.collector.lost
        )
        write_chrome(self.path, [own])


def start_timeline_alone(path: Path) -> None:
    """Records this rank's collectives from now on; no other rank takes part.

    Args:
        path: Where `stop_timeline_alone` puts them, in Chrome's format.

    Raises:
        NotInitializedError: If `init()` has not run.
        RingKerasError: If a timeline is being recorded already.
    """
    job = current_job()
    if recording.of(job) is not None:
        raise RingKerasError(
            "[RK410] a timeline is being recorded already. Stop it first."
        )
    records: list[dict[str, Any]] = []
    recording.put(job, _Alone(path, records, Collector(records.extend)))


def stop_timeline_alone() -> None:
    """Ends it, and writes the file.

    Raises:
        NotInitializedError: If `init()` has not run.
        RingKerasError: If none of this rank alone is being recorded.
        OSError: If the file cannot be written.
    """
    job = current_job()
    alone = recording.of(job)
    if not isinstance(alone, _Alone):
        raise RingKerasError("[RK410] no timeline is being recorded. Start one first.")
    recording.put(job, None)
    alone.end()
