"""Keeps an agent's ranks while their launcher is lost, until another one comes.

See docs/design/0054-a-launcher-that-can-be-lost.md.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ring_keras.launch.connection import Connection
from ring_keras.launch.forwarding import ForwardedOutput
from ring_keras.launch.loop import Loop
from ring_keras.launch.workers import Worker

__all__ = ["RankKeeper"]

# A line that is open, and silent, ends by itself only after the time of an outage. It
# may be an outage: a launcher is not replaced for one of these seconds.
_SILENT_S = 10.0


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
        workers: All processes that were started here.
        outage_s: How long there may be no launcher.
        silent_s: For how many seconds it has said nothing.
        give_up: Gets why the ranks must end.
    """

    def __init__(
        self,
        loop: Loop,
        output: ForwardedOutput,
        workers: Callable[[], Sequence[Worker]],
        outage_s: float,
        silent_s: Callable[[], float],
        give_up: Callable[[str], None],
    ) -> None:
        self._output = output
        self._workers = workers
        self._outage_s = outage_s
        self._silent_s = silent_s
        self._give_up = give_up
        self._memberships: defaultdict[int, _Membership] = defaultdict(_Membership)
        self._alone_since: float | None = None
        loop.on_tick(self._tick)

    def note_join(self, number: int, has_state: bool) -> None:
        """A process asks to join."""
        self._memberships[number].asks = has_state

    def note_answer(self, number: int, answer: dict[str, Any]) -> None:
        """It was told something."""
        if "rank" in answer:
            self._memberships[number] = _Membership(place=answer)

    def alone_s(self) -> float:
        """For how many seconds there has been no launcher; 0: there is one."""
        if self._alone_since is not None:
            return time.monotonic() - self._alone_since
        return max(0.0, self._silent_s() - _SILENT_S)

    def facts(self) -> dict[str, Any]:
        """What tells a launcher whether it may take the job over by itself."""
        workers = self._workers()
        places = (self._memberships[worker.rank].place for worker in workers)
        told = [place for place in places if place is not None]
        last = max(told, key=lambda place: int(place["generation"]), default=None)
        return {
            "generation": 0 if last is None else last["generation"],
            "members": [] if last is None else last["members"],
            "running": [worker.rank for worker in workers if worker.running],
            "ended": [worker.rank for worker in workers if not worker.running],
            "alone": self.alone_s() > 0,
        }

    def begin_outage(self) -> None:
        """There is no launcher."""
        self._alone_since = time.monotonic()
        self._output.hold()

    def end_outage(self, connection: Connection) -> None:
        """There is another one, which learns what it must know."""
        self._alone_since = None
        connection.send({"type": "holds", "processes": self._processes()})
        self._output.go_on(connection)

    def _tick(self) -> None:
        since = self._alone_since
        if since is not None and since + self._outage_s <= time.monotonic():
            self._alone_since = None
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
