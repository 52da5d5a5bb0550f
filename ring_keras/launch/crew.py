"""The ranks of one host, as the launcher sees them."""

from __future__ import annotations

import functools
import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ring_keras.launch.binding import allowed_processors, share_out
from ring_keras.launch.environment import job_variables, terminal_variables
from ring_keras.launch.guard import Ended, kill_descendants
from ring_keras.launch.loop import Loop
from ring_keras.launch.oom_kills import OomKills
from ring_keras.launch.output import say
from ring_keras.launch.places import Place
from ring_keras.launch.workers import Worker, signal_group, start_rank

__all__ = ["GENERATION", "Crew", "HostJob", "LocalCrew", "RankOutput", "write_private"]

GENERATION = 0


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


class Crew(ABC):
    """The ranks of one host."""

    def __init__(self) -> None:
        self.workers: list[Worker] = []
        """Those that were started."""

    @property
    def done(self) -> bool:
        """Whether nothing is left of it."""
        return not any(worker.running for worker in self.workers)

    @property
    def parted(self) -> bool:
        """Whether it needs to hear nothing more, once dismissed."""
        return True

    @abstractmethod
    def start(self, store_address: str) -> None:
        """Starts the ranks; they find the job's store at that address.

        Raises:
            OSError: If that cannot be; some may have been started.
        """

    @abstractmethod
    def finish(self) -> None:
        """Kills what the ranks, which have ended all, left behind."""

    def dismiss(self, exit_code: int, message: str | None) -> None:
        """The job is over, or will never be; how it ended, in words if badly."""
        del exit_code, message


class LocalCrew(Crew):
    """Ranks that are children of this process.

    Args:
        places: Of each rank.
        job: What they run.
        loop: Tells when one has ended.
        token_file: Holds the job's secret.
        output: Takes what they print.
        on_end: Gets each worker that has ended.
        host_name: How messages call this host.
        report_pipe: Where ranks report how far they are, if anybody wants to know.
    """

    def __init__(
        self,
        places: Sequence[Place],
        job: HostJob,
        loop: Loop,
        token_file: Path,
        output: RankOutput,
        on_end: Callable[[Worker], None],
        host_name: str | None = None,
        report_pipe: Path | None = None,
    ) -> None:
        super().__init__()
        self._places = places
        self._job = job
        self._loop = loop
        self._token_file = token_file
        self._output = output
        self._on_end = on_end
        self._host_name = host_name or socket.gethostname()
        self._report_pipe = report_pipe
        self._oom_kills = OomKills()

    def start(self, store_address: str) -> None:
        """Starts the ranks. Must be called from the main thread."""
        cpus: list[tuple[int, ...]] = [()] * len(self._places)
        if self._job.bind_to_cores:
            cpus = share_out(allowed_processors(), len(self._places))
        for place, own_cpus in zip(self._places, cpus, strict=True):
            self.start_one(place, store_address, own_cpus)

    def start_one(
        self,
        place: Place,
        store_address: str,
        cpus: tuple[int, ...] = (),
        more: Mapping[str, str] | None = None,
    ) -> Worker:
        """Starts one rank, with some variables more. From the main thread."""
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
        worker = Worker(
            rank=place.rank,
            host_name=self._host_name,
            deliver=functools.partial(signal_group, started.pid),
            pid=started.pid,
        )
        self.workers.append(worker)
        note_end = functools.partial(self._note_end, worker)
        self._loop.on_child_end(started.pid, note_end)
        self._output.add_rank(place.rank, started.stdout_fd, started.stderr_fd)
        if job.verbose:
            where = f", on CPUs {list(cpus)}" if cpus else ""
            say(f"rank {worker.rank} is pid {worker.pid}{where}")
        return worker

    def finish(self) -> None:
        """They may have left processes that hold the output open."""
        kill_descendants()

    def _note_end(self, worker: Worker, ended: Ended) -> None:
        remark = ""
        if ended.returncode != 0 and not worker.told_to_stop:
            remark = self._oom_kills.describe(*ended)
        worker.end(ended.returncode, remark)
        self._on_end(worker)


def write_private(path: Path, text: str) -> None:
    """Writes a new file that only its owner can read."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w", encoding="ascii") as file:
        file.write(text)
