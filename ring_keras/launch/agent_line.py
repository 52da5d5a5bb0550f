"""The line to a host's agent, as whoever asks something of it has it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ring_keras._version import __version__
from ring_keras.launch.connection import Connection
from ring_keras.launch.frames import Message, Output, ProtocolError

__all__ = ["AgentLine", "RunUntil", "await_greetings"]

# ssh gives up by itself; then Python has to start, from a slow disk maybe.
_HELLO_TIMEOUT_S = 90.0

# Turns a loop until a condition holds; False if it did not within some seconds.
RunUntil = Callable[[Callable[[], bool], float], bool]


class AgentLine:
    """What an agent says, as long as it is there; however it has come to be there.

    Whoever makes the connection gives it by `open`; what ends that calls `lose`.

    Args:
        name: How messages call the host.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.hello: dict[str, Any] | None = None
        """What the agent said first; None until then."""
        self.gone: str | None = None
        """Why there is no agent any more; None while there is."""
        self.has_ended = False
        """Whether the agent itself is known to have ended, and its ranks with it."""
        self.on_hello: Callable[[dict[str, Any]], None] = lambda _hello: None
        """Gets what it says first."""
        self.on_message: Callable[[Message], None] = lambda _message: None
        """Gets what it says then."""
        self.on_lost: Callable[[], None] = lambda: None
        """Is told that it is gone, maybe more than once."""
        self._connection: Connection | None = None

    def open(self, connection: Connection, silence_s: float) -> None:
        """Takes the connection; its other end may be silent a little longer."""
        self._connection = connection
        connection.silence_s = silence_s

    @property
    def silent_s(self) -> float:
        """Since when nothing has come."""
        return 0.0 if self._connection is None else self._connection.silent_s

    def send(self, message: Message) -> None:
        """Tells the agent, if it is there."""
        if self._connection is not None:
            self._connection.send(message)

    def take(self, message: Message) -> None:
        """Takes what the agent says."""
        if self.hello is not None:
            self.on_message(message)
        elif isinstance(message, Output) or message["type"] != "hello":
            raise ProtocolError("it has not greeted yet")
        else:
            self.hello = message
            self.on_hello(message)

    def lose(self, reason: str) -> None:
        """The agent is gone, or nothing more is asked of it."""
        self.gone = self.gone or reason
        if self._connection is not None:
            self._connection.close()
        self.on_lost()

    def give_up(self, reason: str) -> None:
        """The same, and ends what keeps the line."""
        self.lose(reason)

    def version_problem(self) -> str | None:
        """What is wrong with what the agent said first; None if nothing is."""
        theirs = str((self.hello or {}).get("ring_keras"))
        if theirs == __version__:
            return None
        return (
            f"it has ring_keras {theirs}, and this host has {__version__}: install the "
            "same on all"
        )


def await_greetings(run_until: RunUntil, lines: Sequence[AgentLine]) -> None:
    """Until each agent has greeted, with this version, or is gone."""

    def settled(line: AgentLine) -> bool:
        return line.hello is not None or line.gone is not None

    run_until(lambda: all(map(settled, lines)), _HELLO_TIMEOUT_S)
    for line in lines:
        if not settled(line):
            line.lose(f"it did not greet within {_HELLO_TIMEOUT_S:g} s")
        problem = None if line.gone else line.version_problem()
        if problem is not None:
            line.lose(problem)
