"""A host's processes, which an agent starts one by one."""

from __future__ import annotations

import time
from typing import Any

from ring_keras.launch.desk import Desk
from ring_keras.launch.elastic_host import Take
from ring_keras.launch.frames import Message, ProtocolError, field
from ring_keras.launch.hosts import Host
from ring_keras.launch.ssh import SshCrew, SshOptions
from ring_keras.launch.workers import Worker

__all__ = ["ElasticSshCrew"]


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
