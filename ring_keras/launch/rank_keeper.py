"""Keeps an agent's ranks while their launcher is lost, until another one comes.

See docs/design/0054-a-launcher-that-can-be-lost.md.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ring_keras.launch.agent_door import AgentDoor
from ring_keras.launch.connection import Connection
from ring_keras.launch.forwarding import ForwardedOutput
from ring_keras.launch.loop import Loop
from ring_keras.launch.workers import Worker

__all__ = ["RankKeeper"]


@dataclass
class _Membership:
    """What a process has asked and heard of the job.

    Attributes:
        asks: Whether it has the state of the job, if it asks to join; None: it does
            not ask.
        place: What it was told of the generation that it was in last; None: it was
            in none.
    """

    asks: bool | None = None
    place: dict[str, Any] | None = None


class RankKeeper:
    """What the next launcher must know, and how long it may take to come.

    Args:
        loop: Calls back.
        output: What ranks print.
        door: Where the next launcher comes.
        workers: All processes that were started here.
        outage_s: How long there may be no launcher.
        give_up: Gets why the ranks must end.
    """

    def __init__(
        self,
        loop: Loop,
        output: ForwardedOutput,
        door: AgentDoor,
        workers: Callable[[], Sequence[Worker]],
        outage_s: float,
        give_up: Callable[[str], None],
    ) -> None:
        self.door = door
        self._output = output
        self._workers = workers
        self._outage_s = outage_s
        self._give_up = give_up
        self._memberships: defaultdict[int, _Membership] = defaultdict(_Membership)
        self._until: float | None = None
        loop.on_tick(self._tick)

    def note_join(self, number: int, has_state: bool) -> None:
        """A process asks to join."""
        self._memberships[number].asks = has_state

    def note_answer(self, number: int, answer: dict[str, Any]) -> None:
        """It was told something."""
        if "rank" in answer:
            self._memberships[number] = _Membership(place=answer)

    def begin_outage(self) -> None:
        """There is no launcher."""
        self._until = time.monotonic() + self._outage_s
        self._output.hold()

    def end_outage(self, connection: Connection) -> None:
        """There is another one, which learns what it must know."""
        self._until = None
        connection.send({"type": "holds", "processes": self._processes()})
        self._output.go_on(connection)

    def _tick(self) -> None:
        if self._until is not None and self._until <= time.monotonic():
            self._until = None
            self._give_up(f"no launcher has come within {self._outage_s:g} s")

    def _processes(self) -> list[dict[str, Any]]:
        return [
            {
                "number": worker.rank,
                "pid": worker.pid,
                "returncode": worker.returncode,
                "remark": worker.remark,
                "told_to_stop": worker.told_to_stop,
                "open": self._output.open_streams(worker.rank),
                "asks": self._memberships[worker.rank].asks,
                "place": self._memberships[worker.rank].place,
            }
            for worker in self._workers()
        ]
