"""The ranks of a host that has an agent."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ring_keras._version import __version__
from ring_keras.launch.connection import Connection
from ring_keras.launch.crew import Crew
from ring_keras.launch.desk import Desk
from ring_keras.launch.frames import Message, Output, ProtocolError, field
from ring_keras.launch.places import Place
from ring_keras.launch.reports import checked
from ring_keras.launch.workers import Worker

__all__ = ["AgentCrew"]


class AgentCrew(Crew):
    """What an agent says of its ranks, and what it is told.

    Whoever owns the line to the agent gives it by `attach`, and says by `lose` that
    the agent is gone.

    Args:
        name: How messages call the host.
        desk: The launcher's.
    """

    is_elastic = False
    """Whether its ranks are started one by one."""

    def __init__(self, name: str, desk: Desk) -> None:
        super().__init__()
        self.name = name
        self.title = f"host {name}"
        """How messages call it, in full."""
        self.hello: dict[str, Any] | None = None
        """What the agent said first; None until then."""
        self.reached: list[str] | None = None
        """Which addresses it reached; None until its ranks can be started."""
        self.addresses: list[str] = []
        """Its host's own, as far as it has said so."""
        self.gone: str | None = None
        """Why there is no agent any more; None while there is."""
        self._desk = desk
        self._connection: Connection | None = None
        self._places: Sequence[Place] = ()

    @property
    def done(self) -> bool:
        """Whether the agent is gone."""
        return self.gone is not None

    def attach(self, connection: Connection) -> None:
        """Takes the line to the agent."""
        self._connection = connection
        connection.heartbeat_s = self._desk.options.heartbeat_s

    def send(self, message: Message) -> None:
        """Tells the agent, if it is there."""
        if self._connection is not None:
            self._connection.send(message)

    def prepare(self, places: Sequence[Place], **plan: Any) -> None:
        """Asks whether ranks could be started at these places."""
        self._places = places
        self.send(
            {
                "type": "plan",
                "places": [asdict(place) for place in places],
                "grace_period_s": self._desk.options.grace_period_s,
                "heartbeat_s": self._desk.options.heartbeat_s,
                **plan,
            }
        )

    def start(self, store_address: str) -> None:
        """Has the agent start its ranks."""
        for place in self._places:
            self.expect(place.rank)
        if self.gone is not None:
            self.lose(self.gone)  # Before it had any ranks to lose.
        self.begin(store_address)

    def begin(self, store_address: str) -> None:
        """Tells the agent what it must know to start ranks."""
        self.send(
            {
                "type": "start",
                "elastic": self.is_elastic,
                "store_address": store_address,
                "reports": self._desk.watch.report_pipe is not None,
                **self.secrets(),
            }
        )

    def expect(self, rank: int) -> Worker:
        """A rank will be started."""
        self.expect_output(rank)
        worker = Worker(rank, self.name, self._deliver_to(rank))
        self.workers.append(worker)
        return worker

    def secrets(self) -> dict[str, str]:
        """What the agent must know to start its ranks, and learns last."""
        return {}

    def expect_output(self, rank: int) -> None:
        """A rank will be started. By default its own terminal shows its output."""

    def end_output(self, rank: int) -> None:
        """Nobody will bring a rank's output any more."""

    def take_output(self, output: Output) -> None:
        """Takes what a rank has printed."""
        raise ProtocolError("it shall show what its ranks print itself")

    def finish(self) -> None:
        """Lets the agent kill what its ranks left behind."""
        self.send({"type": "finish"})

    def lose(self, reason: str) -> None:
        """The agent is gone, and so are its ranks."""
        self.gone = self.gone or reason
        if self._connection is not None:
            self._connection.close()
        for worker in self.workers:
            if worker.running:
                worker.lose(f"{self.title} was lost: {self.gone}")
                self._desk.on_end(worker)
            self.end_output(worker.rank)

    def take(self, message: Message) -> None:
        """Takes what the agent says."""
        if isinstance(message, Output):
            self._worker(message.rank)  # It is one of its own.
            self.take_output(message)
        elif message["type"] == "hello":
            self.hello = message
        elif message["type"] == "ready":
            self.reached = field(message, "reached", list)
            self.addresses = field(message, "addresses", list)
        elif message["type"] == "refused":
            self.lose(field(message, "why", str))
        elif message["type"] == "started":
            worker = self._worker(field(message, "rank", int))
            worker.pid = field(message, "pid", int)
            if self._desk.options.verbose:
                self._desk.output.say(
                    f"rank {worker.rank} is pid {worker.pid} of {self.title}"
                )
        elif message["type"] == "report":
            # Ranks may write anything there; it ends no line.
            with contextlib.suppress(ValueError):
                report = checked(message.get("report"))
                own = any(worker.rank == report["rank"] for worker in self.workers)
                # Of an elastic job the workers' are processes' numbers.
                if own or self.is_elastic:
                    self._desk.watch.take_report(report)
        elif message["type"] == "ended":
            worker = self._worker(field(message, "rank", int))
            if worker.running:
                code = field(message, "returncode", int)
                because = message.get("because")
                if code == 0 and because is not None and not worker.told_to_stop:
                    # It has obeyed its agent: its work is not done.
                    worker.lose(f"{self.title} was lost: {because}")
                else:
                    worker.end(code, field(message, "remark", str))
                self._desk.on_end(worker)
        else:
            raise ProtocolError(f"no agent says {message['type']!r}")

    def version_problem(self) -> str | None:
        """What is wrong with what the agent said first; None if nothing is."""
        theirs = str((self.hello or {}).get("ring_keras"))
        if theirs == __version__:
            return None
        return (
            f"it has ring_keras {theirs}, and this host has {__version__}: install the "
            "same on all"
        )

    def _deliver_to(self, rank: int) -> Any:
        def deliver(number: int) -> None:
            self.send({"type": "signal", "rank": rank, "number": int(number)})

        return deliver

    def _worker(self, rank: int) -> Worker:
        for worker in self.workers:
            if worker.rank == rank:
                return worker
        raise ProtocolError(f"it has no rank {rank}")
