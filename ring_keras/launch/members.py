"""Who is in a job."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ring_keras.launch.addresses import host_port
from ring_keras.launch.desk import CannotStartError, Desk, require_route
from ring_keras.launch.places import GENERATION

if TYPE_CHECKING:
    from ring_keras import _native

__all__ = ["Ending", "FixedMembers", "Members"]


@dataclass(frozen=True)
class Ending:
    """That a job cannot go on, or need not.

    Attributes:
        message: Why, if that is not to be seen from how its processes ended.
        exit_code: ringrun's then.
        told: Whether its processes are told, and end by themselves.
        cause: What to say besides, once all have ended.
    """

    message: str | None = None
    exit_code: int = 0
    told: bool = False
    cause: Callable[[], str] = lambda: ""


class Members(ABC):
    """Starts the processes of a job, and has the store by which they meet.

    In what it is told, and tells, ranks are the numbers of workers.

    Args:
        desk: The launcher's.
        store_host: The address on which the store shall listen.
    """

    def __init__(self, desk: Desk, store_host: str) -> None:
        self._desk = desk
        self._store_host = store_host
        self._store: _native.StoreServer | None = None

    @property
    @abstractmethod
    def joined(self) -> bool:
        """Whether a process has joined the job."""

    @property
    @abstractmethod
    def arrivals(self) -> tuple[int, int] | None:
        """How many of how many have joined; None if there is no such question."""

    @abstractmethod
    def begin(self) -> None:
        """Starts them, on hosts that are ready.

        Raises:
            CannotStartError: If that cannot be; or OSError.
        """

    @abstractmethod
    def report_exit(self, number: int, how: str) -> None:
        """A process has ended."""

    @abstractmethod
    def advance(self, now: float) -> Ending | None:
        """Does what is due; whether the job must end."""

    @property
    def leaves_ranks(self) -> bool:
        """Whether ranks of the job may wait for another launcher where it has ended."""
        return False

    def ended_ranks(self) -> list[tuple[int, str, bool]]:
        """Who has left the store, oldest first; see its `ended_ranks`."""
        return [] if self._store is None else self._store.ended_ranks()

    def finish(self) -> None:
        """All have ended: kills what they left behind."""
        for crew in self._desk.crews:
            crew.finish()

    def close(self) -> None:
        """Ends the store."""
        if self._store is not None:
            self._store.close()

    def _open_store(self, size: int, generation: int) -> str:
        """Makes the store, for so many ranks; its address.

        Raises:
            OSError: If it cannot be; or RuntimeError.
        """
        host = self._store_host
        self._store = self._desk.open_store(host, size, generation)
        return host_port(host, self._store.port)


class FixedMembers(Members):
    """The same ranks from the beginning to the end: all for whom there is a place."""

    def __init__(self, desk: Desk, store_host: str) -> None:
        super().__init__(desk, store_host)
        self._size = sum(len(crew.places) for crew in desk.crews)

    @property
    def joined(self) -> bool:
        """Whether not every rank has ended before it joined."""
        # The store has been told how each process ended.
        alone = [
            text.endswith("before it joined the job")
            for _, text, _ in self.ended_ranks()
        ]
        return len(alone) < self._size or not all(alone)

    @property
    def arrivals(self) -> tuple[int, int] | None:
        """How many of how many have joined; None where one is all."""
        if self._store is None or self._size == 1:
            return None
        return self._store.connected_ranks(), self._size

    def begin(self) -> None:
        """Starts all."""
        if self._size > 1:
            require_route(self._store_host)
        try:
            store_address = self._open_store(self._size, GENERATION)
        except RuntimeError as error:
            raise CannotStartError(f"the job's store: {error}") from None
        crews, watch = self._desk.crews, self._desk.watch
        for crew in crews:
            crew.start(store_address)
        ranks = [worker for crew in crews for worker in crew.workers]
        ranks.sort(key=lambda worker: worker.rank)
        watch.set_ranks(ranks)
        for worker in ranks:
            watch.note_start(worker)

    def report_exit(self, number: int, how: str) -> None:
        """The store tells the others."""
        if self._store is not None:
            self._store.report_exit(number, how)

    def advance(self, now: float) -> Ending | None:
        """The job ends when one fails; the others may notice by themselves."""
        workers = (worker for crew in self._desk.crews for worker in crew.workers)
        return Ending(told=True) if any(one.failed for one in workers) else None
