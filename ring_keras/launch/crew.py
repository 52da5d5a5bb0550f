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
from ring_keras.launch.elastic_socket import ElasticSocket, Take
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
    """The ranks of one host.

    All at once, at places that are known, or one by one.

    Args:
        name: How messages call the host.
        slots: How many ranks it may have at a time.
    """

    def __init__(self, name: str, slots: int) -> None:
        self.name = name
        self.title = f"host {name}"
        """How messages call it, in full."""
        self.slots = slots
        self.places: Sequence[Place] = ()
        """Of the ranks that it starts with."""
        self.on_join: Take | None = None
        """Is told who asks to join; None: nobody can, as all are there from the start.
        To set before it is started."""
        self.workers: list[Worker] = []
        """Those that were started."""
        self.started = self.finishing = False
        """Whether its host may have ranks, and whether it does nothing more."""
        self.leaves = False
        """Whether its host shall be given back."""

    @property
    def gone(self) -> str | None:
        """Why its host is not there any more; None while it is."""
        return None

    @property
    def done(self) -> bool:
        """Whether nothing is left of it."""
        return not any(worker.running for worker in self.workers)

    @property
    def parted(self) -> bool:
        """Whether it needs to hear nothing more, once dismissed."""
        return True

    def free(self) -> int:
        """For how many more ranks there is room."""
        if self.gone is not None or self.finishing or not self.started:
            return 0
        return max(0, self.slots - sum(worker.running for worker in self.workers))

    @property
    def failures(self) -> int:
        """How many of its ranks have failed so far."""
        ended = [w for w in self.workers if w.returncode not in (None, 0)]
        return sum(not worker.told_to_stop for worker in ended)

    def stay(self, slots: int) -> None:
        """Its host is there, with so many slots; unless it does nothing more."""
        if not self.finishing:
            self._set_leaving(False, slots)

    def leave(self) -> None:
        """No rank is started there any more; those that run are to leave."""
        self._set_leaving(True, 0)

    @abstractmethod
    def start(self, store_address: str) -> None:
        """Starts the ranks that have places; they find the job's store there.

        Raises:
            OSError: If that cannot be; some may have been started.
        """
        self.started = True

    @abstractmethod
    def add(self, number: int, size: int) -> Worker:
        """Starts one more; which rank it is, it learns when it joins.

        Args:
            number: Its own, which it keeps.
            size: With how many the job begins.

        Raises:
            OSError: If that cannot be.
        """

    @abstractmethod
    def finish(self) -> None:
        """Kills what the ranks, which have ended all, left behind."""
        self.finishing = True

    def dismiss(self, exit_code: int, message: str | None) -> None:
        """The job is over, or will never be; how it ended, in words if badly."""
        del exit_code, message

    def _set_leaving(self, leaves: bool, slots: int) -> None:
        self.leaves, self.slots = leaves, slots
        for worker in self.workers:
            worker.leaving = leaves


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
        kill_descendants()

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
        worker = Worker(
            rank=place.rank,
            host_name=self.name,
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
