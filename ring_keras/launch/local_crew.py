"""The ranks of this host: children of this process."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ring_keras.launch.binding import allowed_processors, share_out
from ring_keras.launch.crew import Crew
from ring_keras.launch.elastic_socket import ElasticSocket
from ring_keras.launch.environment import job_variables, terminal_variables
from ring_keras.launch.guard import Ended, kill_descendants
from ring_keras.launch.loop import Loop
from ring_keras.launch.oom_kills import OomKills
from ring_keras.launch.output import say
from ring_keras.launch.places import GENERATION, Place
from ring_keras.launch.rank_group import RankGroup
from ring_keras.launch.workers import Worker, start_rank

__all__ = ["HostJob", "LocalCrew", "RankOutput"]


@dataclass(frozen=True)
class HostJob:
    """What the ranks of a host have in common.

    Attributes:
        command: The command of each.
        environment: Of each, without what makes it one rank of the job.
        bind_to_cores: Whether each rank keeps to cores of its own.
        verbose: Whether to tell of each start.
    """

    command: Sequence[str]
    environment: Mapping[str, str]
    bind_to_cores: bool
    verbose: bool


class RankOutput(Protocol):
    """Takes what ranks print."""

    def add_rank(self, rank: int, stdout_fd: int, stderr_fd: int) -> None:
        """Takes over the reading ends of a rank's pipes."""

    def abandon(self) -> None:
        """All ranks have ended, and what they have left holds their pipes open."""


class LocalCrew(Crew):
    """Ranks that are children of this process.

    Args:
        slots: How many there may be at a time.
        job: What they run.
        loop: Tells when one has ended.
        token_file: Holds the job's secret.
        output: Takes what they print.
        on_end: Gets each worker that has ended.
        report_pipe: Where ranks report how far they are, if anybody wants to know.
    """

    def __init__(
        self,
        slots: int,
        job: HostJob,
        loop: Loop,
        token_file: Path,
        output: RankOutput,
        on_end: Callable[[Worker], None],
        report_pipe: Path | None = None,
    ) -> None:
        super().__init__(socket.gethostname(), slots)
        self._job = job
        self._loop = loop
        self._token_file = token_file
        self._output = output
        self._on_end = on_end
        self._report_pipe = report_pipe
        self._oom_kills = OomKills()

    def start(self, store_address: str) -> None:
        """Starts the ranks. Must be called from the main thread."""
        super().start(store_address)
        if self.on_join is not None:
            ElasticSocket(self._loop, self._socket_path, self.on_join)
            return
        cpus: list[tuple[int, ...]] = [()] * len(self.places)
        if self._job.bind_to_cores:
            cpus = share_out(allowed_processors(), len(self.places))
        for place, own_cpus in zip(self.places, cpus, strict=True):
            self._start_one(place, store_address, own_cpus)

    def add(self, number: int, size: int) -> Worker:
        """Starts one more. Must be called from the main thread."""
        place = Place(number, size, number, size, 0, 1)
        # An empty variable is an unset one: there is no store until all have joined.
        return self._start_one(
            place, "", more={"RING_KERAS_ELASTIC_SOCKET": str(self._socket_path)}
        )

    def finish(self) -> None:
        """They may have left processes that hold the output open."""
        super().finish()
        if not kill_descendants():
            self._output.abandon()

    @property
    def _socket_path(self) -> Path:
        return self._token_file.with_name("elastic")

    def _start_one(
        self,
        place: Place,
        store_address: str,
        cpus: tuple[int, ...] = (),
        more: Mapping[str, str] | None = None,
    ) -> Worker:
        job = self._job
        variables = job_variables(
            place,
            store_address=store_address,
            token_file=self._token_file,
            generation=GENERATION,
            report_pipe=self._report_pipe,
        )
        environment = {
            **job.environment,
            **terminal_variables(job.environment),
            **variables,
            **(more or {}),
        }
        started = start_rank(job.command, environment, cpus)
        group = RankGroup(
            self._loop, started.pid, lambda ended: self._note_end(worker, ended)
        )
        worker = Worker(
            rank=place.rank,
            host_name=self.name,
            deliver=group.signal,
            pid=started.pid,
        )
        self.workers.append(worker)
        self._output.add_rank(place.rank, started.stdout_fd, started.stderr_fd)
        if job.verbose:
            where = f", on CPUs {list(cpus)}" if cpus else ""
            say(f"rank {worker.rank} is pid {worker.pid}{where}")
        return worker

    def _note_end(self, worker: Worker, ended: Ended) -> None:
        remark = ""
        if ended.returncode != 0 and not worker.told_to_stop:
            remark = self._oom_kills.describe(*ended)
        worker.end(ended.returncode, remark)
        self._on_end(worker)
