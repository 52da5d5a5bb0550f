"""Processes of an elastic job on several hosts, each of which has an agent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ring_keras.launch.elastic_options import ElasticOptions
from ring_keras.launch.elastic_socket import Take
from ring_keras.launch.frames import Message, ProtocolError, field
from ring_keras.launch.launcher import Desk, Meeting
from ring_keras.launch.members import Members
from ring_keras.launch.ssh import SshCrew, SshOptions
from ring_keras.launch.workers import Worker

__all__ = ["ElasticSshCrew", "meet_members"]


class ElasticSshCrew(SshCrew):
    """A host's processes, which come one by one.

    Args:
        host: As ssh takes it; None: this host.
        name: How messages call it.
        options: For ssh.
        desk: The launcher's.
        slots: How many processes it takes at a time.
    """

    is_elastic = True

    def __init__(
        self,
        host: str | None,
        name: str,
        options: SshOptions,
        desk: Desk,
        slots: int,
    ) -> None:
        super().__init__(host, name, options, desk)
        self._slots = slots
        self.take_join: Take | None = None
        """Is told who asks to join."""

    def start(self, store_address: str) -> None:
        """Has the agent get ready; it starts no process yet."""
        self.begin(store_address)

    def free(self) -> int:
        """For how many more processes there is room."""
        if self.gone is not None:
            return 0
        return self._slots - sum(worker.running for worker in self.workers)

    @property
    def failures(self) -> int:
        """How many of its processes have failed so far."""
        ended = [w for w in self.workers if w.returncode not in (None, 0)]
        return sum(not worker.told_to_stop for worker in ended)

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


class _Rooms:
    """Where the next process goes: to the host that has failed least, in order."""

    def __init__(self, crews: Sequence[ElasticSshCrew], size: int) -> None:
        self._crews = crews
        self._size = size

    def free(self) -> int:
        return sum(crew.free() for crew in self._crews)

    def add(self, number: int) -> Worker:
        free = [crew for crew in self._crews if crew.free() > 0]
        return min(free, key=lambda crew: crew.failures).add(number, self._size)


def meet_members(
    desk: Desk,
    options: ElasticOptions,
    crews: Sequence[ElasticSshCrew],
    store_host: str,
) -> Meeting:
    """Agents that are ready to start processes, whose number may change."""
    members = Members(
        options,
        token=desk.token,
        encrypt=desk.options.encrypt,
        room=_Rooms(crews, options.size),
        store_host=store_host,
        say=desk.output.say,
    )
    for crew in crews:
        crew.take_join = members.take
    # Times run out without that anything happens.
    desk.loop.on_tick(lambda: None)
    return Meeting(options.size, store_host, members)
