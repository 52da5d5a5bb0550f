"""Where an agent that keeps its ranks is found by the next launcher of the job.

See docs/design/0054-a-launcher-that-can-be-lost.md.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any, Protocol

from ring_keras.launch.addresses import host_port
from ring_keras.launch.connection import Connection
from ring_keras.launch.door import Door, Guest
from ring_keras.launch.frames import (
    GREETING,
    Message,
    Output,
    ProtocolError,
    field,
)
from ring_keras.launch.loop import Loop
from ring_keras.launch.output import say
from ring_keras.launch.secret_proof import CALLED, CALLER

__all__ = ["RANKS_ARE_ENDING", "AgentDoor", "Line", "part_with"]

RANKS_ARE_ENDING = "its ranks are ending"
"""Why an agent serves nobody any more."""


class Line(Protocol):
    """Who gets what comes over a connection."""

    def take(self, message: Message) -> None:
        """Takes a message."""

    def note_end(self, reason: str) -> None:
        """The connection has ended."""


class AgentDoor:
    """A port of this host; who proves the job's secret there may take the job over.

    An agent serves one launcher: that of the highest term that it has heard of.

    Args:
        loop: Calls back.
        launcher: An address of the launcher's host: the port is on the address of
            this host that faces it.
        token: The job's secret.
        term: Of the launcher that it serves.
        hello: Says what the agent says first.
        serve: Gets the connection to the next launcher, and its term; who takes what
            comes over it.

    Raises:
        OSError: If it cannot listen there.
    """

    def __init__(
        self,
        loop: Loop,
        launcher: str,
        token: bytes,
        term: int,
        hello: Callable[[], dict[str, Any]],
        serve: Callable[[Connection, int], Line],
    ) -> None:
        self._loop = loop
        self._hello = hello
        self._term = term
        self._serve = serve
        self.is_shut = False
        """Whether its ranks are ending: nobody can take them over any more."""
        family = socket.AF_INET6 if ":" in launcher else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as line:
            line.connect((launcher, 9))  # Nothing is sent: the kernel looks for a way.
            own = line.getsockname()[0]
        listener = socket.create_server((own, 0), family=family)
        listener.setblocking(False)
        self.address: str = host_port(*listener.getsockname()[:2])
        """Where it is."""
        door = Door(listener, token, CALLER, {}, self._admit, say)
        loop.on_readable(door.fileno(), door.serve)
        loop.on_tick(door.tick)

    def _admit(self, guest: Guest) -> None:
        visitor = _Visitor(self)
        visitor.connection = guest.welcome(
            CALLED, self._loop, visitor.take, visitor.note_end
        )
        visitor.connection.send_raw(GREETING)
        facts = {"term": self._term, "ending": self.is_shut}
        visitor.connection.send({**self._hello(), **facts})
        visitor.connection.take(guest.came)

    def consider(self, visitor: _Visitor, term: int) -> None:
        """Somebody wants to be the launcher of that term."""
        word: dict[str, Any] | None = None
        if self.is_shut:
            word = {"type": "refused", "why": RANKS_ARE_ENDING}
        elif term <= self._term:
            word = {"type": "superseded", "term": self._term}
        if word is not None:
            part_with(self._loop, visitor.connection, word)
            return
        self._term = term
        visitor.line = self._serve(visitor.connection, term)


class _Visitor:
    """Who holds the secret, and may become the launcher that the agent serves."""

    connection: Connection

    def __init__(self, door: AgentDoor) -> None:
        self._door = door
        self.line: Line | None = None
        """What it is to the agent, once it serves it."""

    def take(self, message: Message) -> None:
        """Takes what they say."""
        if self.line is not None:
            self.line.take(message)
        elif isinstance(message, Output) or message["type"] != "take_over":
            raise ProtocolError("a launcher that comes later takes the job over first")
        else:
            self._door.consider(self, field(message, "term", int))

    def note_end(self, reason: str) -> None:
        """They are gone."""
        if self.line is not None:
            self.line.note_end(reason)


def part_with(loop: Loop, connection: Connection, message: dict[str, Any]) -> None:
    """Says a last word, and closes the connection once that has been written."""
    connection.send(message)

    def close_if_written() -> None:
        if connection.drained:
            loop.no_tick(close_if_written)
            connection.close()

    loop.on_tick(close_if_written)
