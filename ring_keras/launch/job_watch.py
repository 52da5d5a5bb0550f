"""What the launcher tells of a job besides its output."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ring_keras.launch.event_log import EventLog
from ring_keras.launch.loop import Loop
from ring_keras.launch.metrics import MetricsServer
from ring_keras.launch.output import OutputPump
from ring_keras.launch.progress import Progress
from ring_keras.launch.reports import ReportPipe
from ring_keras.launch.watch_options import WatchOptions
from ring_keras.launch.workers import Worker

__all__ = ["JobWatch"]


class JobWatch:
    """Shows how fast the ranks train, and writes down what happens.

    Args:
        options: What the user wants to know.
        loop: Calls back.
        directory: For files of the job.
        output: Shows the status.

    Raises:
        OSError: If a file cannot be made, or nobody can listen there.
    """

    def __init__(
        self, options: WatchOptions, loop: Loop, directory: Path, output: OutputPump
    ) -> None:
        self._output = output
        self._events = EventLog(options.event_log)
        self._workers: list[Worker] = []
        self._progress: Progress | None = None
        self.report_pipe: Path | None = None
        """Where ranks of this host report; None: nobody wants to know."""
        wanted = (options.event_log, options.metrics)
        if options.status or any(one is not None for one in wanted):
            path = directory / "reports"
            self.report_pipe = ReportPipe(loop, path, self.take_report).path
        if options.status:
            loop.on_tick(self._show_status)
        if options.metrics is not None:
            MetricsServer(options.metrics, self._latest, self._host_of)

    def begin(self, workers: Sequence[Worker]) -> None:
        """All ranks have been started."""
        self._workers = sorted(workers, key=lambda worker: worker.rank)
        self._progress = Progress(len(workers), self._host_of)
        for worker in self._workers:
            self._events.add("membership", f"{_named(worker)} was started", worker.rank)

    def take_report(self, report: dict[str, Any]) -> None:
        """Takes what a rank says of itself."""
        if "event" in report:
            one = report["event"]
            self._events.add(one["kind"], one["text"], report["rank"], one["time"])
        elif self._progress is not None:
            self._progress.take(report)

    def note_end(self, worker: Worker, how: str) -> None:
        """A rank has ended."""
        kind = "fault" if worker.failed else "membership"
        self._events.add(kind, f"{_named(worker)} {how}", worker.rank)

    def conclude(self, message: str | None) -> None:
        """The job is over; why, if it went badly."""
        if message is not None:
            self._events.add("fault", message)

    def _latest(self) -> dict[int, dict[str, Any]]:
        """A copy: the launcher's thread goes on."""
        return {} if self._progress is None else dict(self._progress.latest)

    def _host_of(self, rank: int) -> str:
        return self._workers[rank].host_name

    def _show_status(self) -> None:
        running = any(worker.running for worker in self._workers)
        line = self._progress.line() if self._progress is not None and running else ""
        self._output.show_status(line)


def _named(worker: Worker) -> str:
    return f"rank {worker.rank} (host {worker.host_name})"
