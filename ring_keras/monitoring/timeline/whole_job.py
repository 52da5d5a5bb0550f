"""The timeline that `RING_KERAS_TIMELINE` asks for: from `init()` to the end.

At its end a rank may be the only one that is left, so it writes its part alone, and
whoever has started the ranks puts the parts together.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ring_keras.job.job import Job
from ring_keras.monitoring.timeline.clocks import measure_offset
from ring_keras.monitoring.timeline.collector import Collector
from ring_keras.monitoring.timeline.part_file import PartFile

__all__ = ["begin_whole_job", "end_whole_job"]


@dataclass
class _WholeJob:
    part: PartFile
    collector: Collector


def begin_whole_job(job: Job, path: Path) -> None:
    """Records every collective of this membership; collective."""
    part = PartFile(path, job.rank, job.host, measure_offset())
    job.timeline = _WholeJob(part, Collector(part.add))


def end_whole_job(job: Job) -> None:
    """Completes this rank's part, if there is one."""
    whole = job.timeline
    if not isinstance(whole, _WholeJob):
        return
    job.timeline = None
    whole.collector.stop()
    whole.part.close(whole.collector.lost)
