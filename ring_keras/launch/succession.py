"""An agent that hears no launcher any more starts another one, in its turn.

See docs/design/0054-a-launcher-that-can-be-lost.md.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from ring_keras.config import inherited_environment
from ring_keras.launch.card import Card, CardError
from ring_keras.launch.guard import Ended
from ring_keras.launch.loop import Loop
from ring_keras.launch.output import say

__all__ = ["Succession", "turn_s"]

# The first agent of the card begins so many seconds after it has heard the launcher
# last, the second after twice as many, ... With many agents a turn is shorter: the last
# one comes so long before ranks end, if that is within half of the time that they wait.
_TURN_S = 3.0
_LAST_S = 10.0
# One that has the job, and ends so soon, cannot serve it from this host: the next turn
# is that of another agent, and after so many there is no other.
_SHORT_S = 60.0
_MAX_SHORT = 2


def turn_s(agents: int, outage_s: float) -> float:
    """How many seconds each of them has, so that all have a turn."""
    return min(_TURN_S, max(outage_s - _LAST_S, outage_s / 2) / agents)


class Succession:
    """Starts a launcher that takes the job over, if those before it have not.

    It takes what it has to know from a copy of the card, beside the secret.

    Args:
        loop: Calls back.
        directory: For that copy.
        address: Where this agent is to be called, as the card has it.
        outage_s: For how many seconds ranks wait.
        alone_s: For how many seconds there has been no launcher.
    """

    def __init__(
        self,
        loop: Loop,
        directory: Path,
        address: str,
        outage_s: float,
        alone_s: Callable[[], float],
    ) -> None:
        self._loop = loop
        self._path = directory / "card"
        self._address = address
        self._outage_s = outage_s
        self._alone_s = alone_s
        self._turn: int | None = None
        self._others = 0
        self._turn_s = _TURN_S
        self._begun_at_s = 0.0
        self._pid: int | None = None
        self._started_at = 0.0
        self._has_served = False
        self._short = 0
        loop.on_tick(self._tick)

    def take(self, card: Card) -> None:
        """The card is now this."""
        addresses = [agent.address for agent in card.agents]
        self._turn = None
        if self._address in addresses:
            try:
                card.write(self._path)
            except CardError as error:
                say(f"this host can start no other launcher: {error}")
                return
            self._turn = 1 + addresses.index(self._address)
            self._others = len(addresses) - 1
            self._turn_s = turn_s(len(addresses), self._outage_s)

    def _tick(self) -> None:
        alone_s = self._alone_s()
        if not alone_s:
            self._begun_at_s = 0.0
            self._has_served = self._pid is not None
        elif self._turn is None or self._pid is not None or self._short > _MAX_SHORT:
            return
        elif alone_s - self._begun_at_s >= self._turn * self._turn_s:
            self._start()

    def _start(self) -> None:
        command = [sys.executable, "-m", "ring_keras.launch.successor"]
        try:
            self._pid = os.posix_spawn(
                sys.executable,
                [*command, str(self._path)],
                inherited_environment(),
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                ],
                setsid=True,
                setsigmask=[],
                setsigdef=[signal.SIGINT, signal.SIGTERM, signal.SIGHUP],
            )
        except OSError as error:  # Others may have more luck.
            say(f"cannot start another launcher: {error}")
            self._begun_at_s = self._alone_s()
            return
        self._started_at = time.monotonic()
        self._loop.on_child_end(self._pid, self._note_end)

    def _note_end(self, _ended: Ended) -> None:
        """If it has not had the job, it is tried again."""
        is_short = time.monotonic() - self._started_at < _SHORT_S
        self._short = self._short + 1 if self._has_served and is_short else 0
        self._has_served = False
        self._pid = None
        self._begun_at_s = self._alone_s() + self._short * self._others * self._turn_s
