"""The ranks of one host, as the launcher sees them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from ring_keras.launch.card import Card
from ring_keras.launch.elastic_socket import Take
from ring_keras.launch.last_generation import Found
from ring_keras.launch.places import Place
from ring_keras.launch.workers import Worker

__all__ = ["Crew"]


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
        self.found: list[Found] = []
        """Those of them that another launcher has started."""
        self.started = self.finishing = False
        """Whether its host may have ranks, and whether it does nothing more."""
        self.leaves = False
        """Whether its host shall be given back."""

    @property
    def gone(self) -> str | None:
        """Why its host is not there any more; None while it is."""
        return None

    @property
    def silent_s(self) -> float:
        """Since when nothing has come from its host."""
        return 0.0

    def give_up(self, why: str) -> None:
        """Its host, which is silent, is lost."""
        raise AssertionError(f"this host is never silent: {why}")

    @property
    def done(self) -> bool:
        """Whether nothing is left of it."""
        return not any(worker.running for worker in self.workers)

    @property
    def parted(self) -> bool:
        """Whether it needs to hear nothing more, once dismissed."""
        return True

    @property
    def keeps_ranks(self) -> bool:
        """Whether its host, once gone, may have ranks yet that another one takes."""
        return False

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

    @property
    def leavers(self) -> int:
        """How many of its ranks run yet, and are to leave."""
        return sum(worker.running and worker.leaving for worker in self.workers)

    def stay(self, slots: int) -> None:
        """Its host is there, with so many slots; unless it does nothing more.

        If it has more ranks than that, the newest ones are to leave.
        """
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

    def take_card(self, card: Card) -> None:
        """What another launcher of the job has to know is now this."""
        del card

    def note_ending(self, grace_s: float) -> None:
        """The job ends: its ranks are told to, and have so long for it."""
        del grace_s

    def dismiss(self, exit_code: int, message: str | None) -> None:
        """The job is over, or will never be; how it ended, in words if badly."""
        del exit_code, message

    def _set_leaving(self, leaves: bool, slots: int) -> None:
        self.leaves, self.slots = leaves, slots
        running = [worker for worker in self.workers if worker.running]
        for place, worker in enumerate(running):
            worker.leaving = place >= slots
