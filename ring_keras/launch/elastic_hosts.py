"""The hosts of an elastic job, each of which has an agent; they may come and go."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from ring_keras.launch.desk import Desk
from ring_keras.launch.elastic_host import Take
from ring_keras.launch.elastic_options import ElasticOptions
from ring_keras.launch.frames import Message, ProtocolError, field
from ring_keras.launch.hosts import Host
from ring_keras.launch.ssh import SshCrew, SshOptions
from ring_keras.launch.workers import Worker

__all__ = ["ElasticHosts", "ElasticSshCrew"]

# ssh gives up by itself; then Python has to start, from a slow disk maybe.
_READY_TIMEOUT_S = 120.0


class ElasticSshCrew(SshCrew):
    """What an agent of an elastic job says and is told.

    Args:
        reached_as: How ssh takes the host; None: this host.
        name: How messages call it.
        host: As the user has named it.
        options: For ssh.
        desk: The launcher's.
    """

    is_elastic = True

    def __init__(
        self,
        reached_as: str | None,
        name: str,
        host: Host,
        options: SshOptions,
        desk: Desk,
    ) -> None:
        super().__init__(reached_as, name, options, desk)
        self.host = host
        self.began_at = time.monotonic()
        self.prepared = self.ready = False
        """Whether it has been asked to get ready, and whether it is."""
        self.leaves = self.finishing = False
        """Whether it shall be given back, and whether it has been told to end."""
        self.take_join: Take | None = None
        """Is told who asks to join."""
        self._slots = host.slots

    def start(self, store_address: str) -> None:
        """Has the agent get ready to start processes."""
        self.ready = True
        self.begin(store_address)

    def free(self) -> int:
        """For how many more processes there is room."""
        if self.gone is not None or self.finishing or not self.ready:
            return 0
        return max(0, self._slots - sum(worker.running for worker in self.workers))

    @property
    def failures(self) -> int:
        """How many of its processes have failed so far."""
        ended = [w for w in self.workers if w.returncode not in (None, 0)]
        return sum(not worker.told_to_stop for worker in ended)

    def stay(self, slots: int) -> None:
        """It is there, with so many slots; unless it has been told to end."""
        if self.finishing:
            return
        self._slots = slots
        self.leaves = False
        for worker in self.workers:
            worker.leaving = False

    def leave(self) -> None:
        """No process is started there any more; those that run are to leave."""
        self._slots = 0
        self.leaves = True
        for worker in self.workers:
            worker.leaving = True

    def finish(self) -> None:
        """No process of it is left."""
        self.finishing = True
        super().finish()

    def add(self, number: int, size: int) -> Worker:
        """Has the agent start one process."""
        worker = self.expect(number)
        self.send({"type": "add", "rank": number, "size": size})
        return worker

    def take(self, message: Message) -> None:
        """Takes what the agent says."""
        if not isinstance(message, dict) or message["type"] != "join":
            super().take(message)
            return
        number = field(message, "rank", int)
        if self.take_join is None or all(w.rank != number for w in self.workers):
            raise ProtocolError(f"it has no process {number}")

        def tell(answer: dict[str, Any]) -> None:
            self.send({"type": "tell", "rank": number, "message": answer})

        self.take_join(number, field(message, "has_state", bool), tell)


class ElasticHosts:
    """Gives each process a host: the one that has failed least, and of those the first.

    Args:
        desk: The launcher's.
        options: Of the job.
        store_host: The address at which hosts must reach this one.
        connect: Starts an agent on a host.
        prepare: Asks an agent that has greeted whether ranks can be started there.
    """

    def __init__(
        self,
        desk: Desk,
        options: ElasticOptions,
        store_host: str,
        connect: Callable[[Host], ElasticSshCrew],
        prepare: Callable[[ElasticSshCrew], None],
    ) -> None:
        self._desk = desk
        self._options = options
        self._store_host = store_host
        self._connect = connect
        self._prepare = prepare
        self.grows = options.discovery is not None
        """Whether others may come."""
        self._crews: dict[str, ElasticSshCrew] = {}
        self._failures: dict[str, int] = {}
        self._next_try_at: dict[str, float] = {}

    def add_host(self, crew: ElasticSshCrew) -> None:
        """One that is ready, or will be."""
        self._crews[crew.host.name] = crew

    def free(self) -> int:
        """For how many more processes there is room."""
        return sum(crew.free() for crew in self._crews.values())

    def add(self, number: int) -> Worker:
        """Starts a process."""
        free = [crew for crew in self._crews.values() if crew.free() > 0]
        crew = min(free, key=lambda crew: self._failures_of(crew))
        return crew.add(number, self._options.size)

    def take(self, hosts: Sequence[Host]) -> None:
        """These are the hosts from now on."""
        now = time.monotonic()
        for host in hosts:
            crew = self._crews.get(host.name)
            if crew is not None:
                crew.stay(host.slots)
            elif now >= self._next_try_at.get(host.name, 0.0):
                self._desk.output.say(f"elastic: host {host.name} has come")
                try:
                    crew = self._connect(host)
                except OSError as error:
                    self._note_failure(host.name, str(error), 0, now)
                    continue
                self._desk.crews.append(crew)
                self.add_host(crew)
        listed = {host.name for host in hosts}
        for name, crew in self._crews.items():
            if name not in listed and not crew.leaves:
                self._desk.output.say(f"elastic: host {name} is to be given back")
                crew.leave()

    def advance(self) -> None:
        """Does what is due for hosts that come or go; about each second."""
        now = time.monotonic()
        for name, crew in list(self._crews.items()):
            if crew.gone is not None:
                del self._crews[name]
                if not crew.leaves and not crew.finishing:
                    self._note_failure(name, crew.gone, crew.failures, now)
            elif crew.leaves and crew.hello is None:
                crew.give_up("it is to be given back, and has not greeted")
            elif crew.leaves and not any(w.running for w in crew.workers):
                crew.finish()
            elif not crew.ready:
                self._make_ready(crew, now)

    def _make_ready(self, crew: ElasticSshCrew, now: float) -> None:
        if crew.reached is not None:
            if self._store_host in crew.reached:
                crew.start("")
            else:
                crew.give_up(f"it does not reach {self._store_host}, as the others do")
        elif crew.hello is not None and not crew.prepared:
            problem = crew.version_problem()
            if problem is None:
                crew.prepared = True
                self._prepare(crew)
            else:
                crew.give_up(problem)
        elif now - crew.began_at > _READY_TIMEOUT_S:
            crew.give_up(f"it did not get ready within {_READY_TIMEOUT_S:g} s")

    def _note_failure(self, name: str, why: str, processes: int, now: float) -> None:
        self._desk.output.say(f"elastic: host {name} was lost: {why}")
        self._failures[name] = self._failures.get(name, 0) + processes + 1
        first, last = self._options.cooldown_s
        wait_s = min(last, first * 2.0 ** min(self._failures[name] - 1, 64))
        self._next_try_at[name] = now + wait_s

    def _failures_of(self, crew: ElasticSshCrew) -> int:
        return self._failures.get(crew.host.name, 0) + crew.failures
