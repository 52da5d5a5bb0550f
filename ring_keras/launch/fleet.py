"""The hosts of a job whose ranks may change: they may come and go, too."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from ring_keras.launch.connection import BEYOND_HEARTBEAT_S, no_word_for
from ring_keras.launch.crew import Crew
from ring_keras.launch.elastic_options import ElasticOptions
from ring_keras.launch.elastic_socket import Take
from ring_keras.launch.hosts import Host
from ring_keras.launch.last_generation import Found
from ring_keras.launch.loop import TICK_S
from ring_keras.launch.workers import Worker

__all__ = ["Fleet", "Growth"]


class Growth(Protocol):
    """Brings hosts while the job runs."""

    def begin(self, fleet: Fleet) -> None:
        """From now on."""

    def connect(self, host: Host) -> Crew:
        """Begins to get ready one that `Fleet.take` was told of.

        Raises:
            OSError: If that cannot be.
        """

    def is_ready(self, crew: Crew) -> bool:
        """Whether ranks can be started there; does what is to be done for that."""

    def finish(self) -> None:
        """No host is needed any more."""


class Fleet:
    """Gives each process a host: the one that has failed least, and of those the first.

    Args:
        crews: Of the hosts that are ready, by how messages call these.
        options: Of the job.
        say: Tells the user.
        growth: What brings others; None: nothing does.
        silence_s: How long a host may be silent while another is heard, and a little
            longer.
        kept_s: For how long one that is lost may keep its ranks for another launcher.
        cut_off: How messages call hosts that were lost at the start, and may keep
            theirs.
    """

    def __init__(
        self,
        crews: Mapping[str, Crew],
        options: ElasticOptions,
        say: Callable[[str], None],
        growth: Growth | None,
        silence_s: float,
        kept_s: float,
        cut_off: Collection[str] = (),
    ) -> None:
        self._crews = dict(crews)
        self._options = options
        self._silence_s = silence_s + BEYOND_HEARTBEAT_S
        self._kept_s = kept_s
        self._say = say
        self._growth = growth
        self._on_join: Take | None = None
        self._failures: dict[str, int] = {}
        self._told: dict[str, str] = {}
        self._excused_s: dict[Crew, float] = {}
        tried_at = time.monotonic() + kept_s
        self._next_try_at = dict.fromkeys(cut_off, tried_at)

    @property
    def slots(self) -> int:
        """How many processes there may be, as long as no host comes or goes."""
        return sum(crew.slots for crew in self._crews.values() if crew.gone is None)

    @property
    def grows(self) -> bool:
        """Whether there may be more room later."""
        return self._growth is not None

    def begin(self, on_join: Take) -> None:
        """From now on processes can be started; who asks to join is told.

        Raises:
            OSError: If they cannot.
        """
        self._on_join = on_join
        for crew in self._crews.values():
            self._start(crew)
        if self._growth is not None:
            self._growth.begin(self)

    def finish(self) -> None:
        """No process will be started any more."""
        if self._growth is not None:
            self._growth.finish()

    def found(self) -> list[Found]:
        """Processes that another launcher has started."""
        return [one for crew in self._crews.values() for one in crew.found]

    def free(self) -> int:
        """For how many more processes there is room."""
        return sum(crew.free() for crew in self._crews.values())

    def add(self, number: int, size: int) -> Worker:
        """Starts a process, if there is room: see `Crew.add`."""
        free = [name for name, crew in self._crews.items() if crew.free() > 0]
        return self._crews[min(free, key=self._failures_of)].add(number, size)

    def take(self, hosts: Sequence[Host]) -> None:
        """These are the hosts from now on."""
        assert self._growth is not None
        now = time.monotonic()
        listed = {f"host {host.name}": host for host in hosts}
        for name, host in listed.items():
            crew = self._crews.get(name)
            if crew is not None:
                before = crew.leavers
                crew.stay(host.slots)
                if crew.leavers > before:
                    self._say(
                        f"elastic: {name} now has slots for {host.slots}: as many of "
                        "its ranks stay, and the newest are to leave"
                    )
            elif now >= self._next_try_at.get(name, 0.0):
                if name not in self._failures:
                    self._say(f"elastic: {name} has come")
                try:
                    self._crews[name] = self._growth.connect(host)
                except OSError as error:
                    self._note_loss(name, str(error), 0, now)
        for name, crew in self._crews.items():
            if name not in listed and not crew.leaves:
                self._say(f"elastic: {name} is to be given back")
                crew.leave()

    def advance(self) -> None:
        """Does what is due for hosts that come or go; about each second."""
        now = time.monotonic()
        self._give_up_silent()
        for name, crew in list(self._crews.items()):
            if crew.gone is not None:
                del self._crews[name]
                self._excused_s.pop(crew, None)
                if not crew.leaves and not crew.finishing:
                    self._note_loss(name, crew.gone, crew.failures, now)
                if crew.keeps_ranks:  # New ones would meet them on their devices.
                    ended_at = now + self._kept_s
                    self._next_try_at[name] = max(
                        self._next_try_at.get(name, 0.0), ended_at
                    )
            elif crew.leaves and not any(w.running for w in crew.workers):
                crew.finish()
            elif not crew.started and self._is_ready(crew):
                if name in self._failures:
                    self._say(f"elastic: {name} is back")
                self._told.pop(name, None)
                self._start(crew)

    def hears(self, worker: Worker) -> bool:
        """Whether there has been word of late from the host of a process."""
        return any(
            worker in crew.workers and crew.silent_s < self._silence_s / 2
            for crew in self._crews.values()
        )

    def _give_up_silent(self) -> None:
        # A spare host that is heard says nothing of the others: who trains on is lost
        # to this host alone, and there would be nobody to go on without it.
        crews = [
            crew
            for crew in self._crews.values()
            if crew.gone is None and any(worker.running for worker in crew.workers)
        ]
        hears_somebody = any(crew.silent_s < self._silence_s / 2 for crew in crews)
        for crew in crews:
            if crew.silent_s < self._silence_s / 2:
                self._excused_s.pop(crew, None)
                continue
            excused_s = self._excused_s.get(crew, 0.0)
            if not hears_somebody:
                # This host is cut off itself, and their ranks train on. The lines end
                # that, later.
                self._excused_s[crew] = excused_s + TICK_S
            # When it is over, TCP may take as long again to try.
            elif crew.silent_s > self._silence_s + 2 * excused_s:
                crew.give_up(no_word_for(crew.silent_s))

    def _is_ready(self, crew: Crew) -> bool:
        return self._growth is not None and self._growth.is_ready(crew)

    def _start(self, crew: Crew) -> None:
        crew.on_join = self._on_join
        if not crew.started:  # By another launcher.
            crew.start("")  # Processes learn where their store is when they join.

    def _note_loss(self, name: str, why: str, processes: int, now: float) -> None:
        if self._told.get(name) != why:  # It is tried again and again.
            self._say(f"elastic: {name} was lost: {why}")
        self._told[name] = why
        self._failures[name] = self._failures.get(name, 0) + processes + 1
        wait_s = self._options.cooldown_after_s(self._failures[name])
        self._next_try_at[name] = now + wait_s

    def _failures_of(self, name: str) -> int:
        return self._failures.get(name, 0) + self._crews[name].failures
