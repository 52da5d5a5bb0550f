"""Beginning and ending a timeline."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from absl import logging

from ring_keras.errors import RingKerasError
from ring_keras.job.gathering import gather_bytes, gather_texts
from ring_keras.job.job import Job, current_job
from ring_keras.monitoring.timeline.clocks import Clock, Offset, measure_offset
from ring_keras.monitoring.timeline.collector import Collector, recording
from ring_keras.monitoring.timeline.formats import obstacle_to, write_timeline
from ring_keras.monitoring.timeline.merged import RankTimeline

__all__ = ["start_timeline", "stop_timeline"]


@dataclass
class _Running:
    path: Path
    began: Offset
    records: list[dict[str, Any]]
    collector: Collector

    def end(self) -> None:
        """The job is over, and no other rank brings its part."""
        self.collector.stop()
        logging.warning(
            "ring_keras: [RK410] "
            "the timeline %s is not written: call stop_timeline() before "
            "the job ends, on every rank.",
            self.path,
        )


def start_timeline(path: str | Path) -> None:
    """Records every collective from now on; every rank calls it.

    Examples:
        >>> ring.start_timeline("timeline.json")
        >>> total = ring.allreduce(tf.ones(3), op=ring.Sum)
        >>> ring.stop_timeline()  # Rank 0 has written the file.

    Args:
        path: The file to which `stop_timeline()` writes all ranks' collectives, on rank
            0. The format is Chrome's if the name ends in `.json`, otherwise Perfetto's,
            for https://ui.perfetto.dev. The same on every rank.

    Raises:
        NotInitializedError: If `init()` has not run.
        RingKerasError: If a timeline is being recorded already on any rank, or the
            package `perfetto` is needed and not installed.
    """
    job = current_job()
    path = Path(path)
    _raise_for_all(_obstacle(job, path), "timeline/start")
    began = measure_offset()
    records: list[dict[str, Any]] = []
    recording.put(job, _Running(path, began, records, Collector(records.extend)))


def stop_timeline() -> None:
    """Ends the timeline, and writes it on rank 0; every rank calls it.

    Examples:
        >>> ring.start_timeline("timeline.json")
        >>> ring.barrier()
        >>> ring.stop_timeline()

    Raises:
        NotInitializedError: If `init()` has not run.
        RingKerasError: If no timeline is being recorded, or rank 0 cannot write it.
    """
    job = current_job()
    running = recording.of(job)
    if not isinstance(running, _Running):
        raise RingKerasError(
            "[RK410] no timeline is being recorded. Call start_timeline() first."
        )
    recording.put(job, None)
    running.collector.stop()
    clock = Clock(running.began, measure_offset())
    parts = gather_bytes(_encode(job, running, clock), "timeline")
    problem = ""
    if job.rank == 0:
        try:
            write_timeline(running.path, [_decode(content) for _, content in parts])
        except Exception as error:  # Whatever it is: the others wait for the answer.
            problem = f"cannot write the timeline: {type(error).__name__}: {error}"
    _raise_for_all(problem, "timeline/stop")


def _obstacle(job: Job, path: Path) -> str:
    """Why this rank cannot record one; empty: it can."""
    if recording.of(job) is not None:
        return "a timeline is being recorded already. Call stop_timeline() first."
    return obstacle_to(path)


def _raise_for_all(problem: str, name: str) -> None:
    """Raises on every rank what any rank has, so that none waits for another."""
    for rank, text in enumerate(gather_texts(problem, name)):
        if text:
            raise RingKerasError(f"[RK410] rank {rank}: {text}")


def _encode(job: Job, running: _Running, clock: Clock) -> bytes:
    part = {
        "rank": job.rank,
        "host": job.host,
        "clock": [vars(clock.first), vars(clock.last)],
        "records": running.records,
        "lost": running.collector.lost,
    }
    return json.dumps(part).encode()


def _decode(content: bytes) -> RankTimeline:
    part = json.loads(content)
    first, last = (Offset(**offset) for offset in part.pop("clock"))
    return RankTimeline(clock=Clock(first, last), **part)
