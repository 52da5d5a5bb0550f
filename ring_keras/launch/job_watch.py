"""What the launcher tells of a job besides its output."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ring_keras.launch.console import BETWEEN_PARTS
from ring_keras.launch.event_log import EventLog
from ring_keras.launch.loop import Loop
from ring_keras.launch.metrics import MetricsServer
from ring_keras.launch.output import OutputPump
from ring_keras.launch.progress import Progress
from ring_keras.launch.reports import ReportPipe
from ring_keras.launch.watch_options import WatchOptions
from ring_keras.launch.workers import Worker

__all__ = ["JobWatch"]

_LONG_START_S = 20


class JobWatch:
    """Shows how fast the ranks train, and writes down what happens.

    Args:
        options: What the user wants to know.
        loop: Calls back.
        directory: For files of the job.
        output: Shows the status.
        arrivals: Says how many of how many ranks have joined; None: nobody runs.
        needs_all: Whether events must be written, and metrics served, if they are
            asked for; else it is told if they cannot.

    Raises:
        OSError: If a file cannot be made, or nobody can listen there.
    """

    def __init__(
        self,
        options: WatchOptions,
        loop: Loop,
        directory: Path,
        output: OutputPump,
        arrivals: Callable[[], tuple[int, int] | None],
        *,
        needs_all: bool = True,
    ) -> None:
        self._arrivals = arrivals
        self._began_at: float | None = time.monotonic()
        self._output = output
        try:
            self._events = EventLog(options.event_log, output.say)
        except OSError as error:
            if needs_all:
                raise
            self._events = EventLog(None, output.say)
            why = f"cannot write {options.event_log} ({error.strerror})"
            output.say(f"events are not written any more: {why}")
        self._ranks: list[Worker] = []
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
            try:
                MetricsServer(options.metrics, self._latest, self._host_of)
            except OSError as error:
                if needs_all:
                    raise
                place = f"{options.metrics.host}, port {options.metrics.port}"
                why = f"this host cannot listen on {place} ({error.strerror})"
                output.say(f"metrics are not served any more: {why}")

    def set_ranks(self, workers: Sequence[Worker]) -> None:
        """Who trains together from now on, by rank."""
        self._ranks = list(workers)
        self._progress = Progress(len(workers), self._host_of)

    def note_ranks(self, workers: Sequence[Worker]) -> None:
        """The same in a job whose processes may change, and keep their numbers."""
        self.set_ranks(workers)
        processes = ", ".join(str(worker.rank) for worker in workers)
        size = "1 rank trains" if len(workers) == 1 else f"{len(workers)} ranks train"
        self._events.add("membership", f"{size}: processes {processes}")

    def note_start(self, worker: Worker) -> None:
        """A process has been started."""
        text = f"{self._named(worker)} was started"
        self._events.add("membership", text, self._rank_of(worker))

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
        self._events.add(kind, f"{self._named(worker)} {how}", self._rank_of(worker))

    def conclude(self, message: str | None) -> None:
        """The job is over; why, if it went badly."""
        if message is not None:
            self._events.add("fault", message)
        self._events.close()

    def _latest(self) -> dict[int, dict[str, Any]]:
        """A copy: the launcher's thread goes on."""
        return {} if self._progress is None else dict(self._progress.latest)

    def _host_of(self, rank: int) -> str:
        # Another thread asks, which may still know of ranks that are no more.
        ranks = self._ranks
        return ranks[rank].host_name if rank < len(ranks) else "unknown"

    def _rank_of(self, worker: Worker) -> int | None:
        return self._ranks.index(worker) if worker in self._ranks else None

    def _named(self, worker: Worker) -> str:
        rank = self._rank_of(worker)
        name = f"process {worker.rank}" if rank is None else f"rank {rank}"
        return f"{name} (host {worker.host_name})"

    def _show_status(self) -> None:
        running = any(worker.running for worker in self._ranks)
        line = self._progress.line() if self._progress is not None and running else ""
        self._output.show_status(line or self._starting())

    def _starting(self) -> str:
        """How many ranks have joined, until all have for the first time."""
        arrivals = None if self._began_at is None else self._arrivals()
        if arrivals is None or self._began_at is None:
            return ""
        joined, size = arrivals
        if joined >= size:
            self._began_at = None
            return ""
        seconds = time.monotonic() - self._began_at
        text = f"starting {size} ranks ... {joined} of {size} have joined"
        # Python and TensorFlow start sooner than that.
        idle = joined == 0 and seconds >= _LONG_START_S
        parts = [f"{text} ({seconds:.0f} s)"]
        if idle:
            parts.append("does the script call init()?")
        return BETWEEN_PARTS.join(parts)
