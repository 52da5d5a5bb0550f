"""The timeline that `RING_KERAS_TIMELINE` asks for: from `init()` to the end.

At its end a rank may be the only one that is left, so it writes its part alone, and
whoever has started the ranks puts the parts together.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from absl import logging

from ring_keras.job.job import Job
from ring_keras.monitoring.timeline.clocks import measure_offset
from ring_keras.monitoring.timeline.collector import Collector, recording
from ring_keras.monitoring.timeline.part_file import PartFile, find_parts

__all__ = ["begin_whole_job", "end_timeline"]


@dataclass
class _WholeJob:
    part: PartFile
    collector: Collector

    def end(self) -> None:
        """Completes this rank's part."""
        self.collector.stop()
        self.part.close(self.collector.lost)


def begin_whole_job(job: Job, path: Path) -> None:
    """Records every collective of this membership; collective."""
    follows = job.generation > job.config.generation
    if job.rank == 0 and not follows:
        # Of another job, which was killed and may have had more ranks.
        for stale in find_parts(path):
            stale.unlink()
    # No rank leaves this before rank 0 has come to it.
    offset = measure_offset()
    part = PartFile(
        path, job.rank, job.host, offset, generation=job.generation, follows=follows
    )
    recording.put(job, _WholeJob(part, Collector(part.add)))


def end_timeline(job: Job) -> None:
    """Ends whatever timeline is being recorded, when this rank is about to leave."""
    timeline = recording.of(job)
    if timeline is None:
        return
    recording.put(job, None)
    try:
        timeline.end()
    except Exception as error:  # Of the file system: no reason not to leave.
        logging.warning("ring_keras: [RK410] the timeline is incomplete: %r", error)
