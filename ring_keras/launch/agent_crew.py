"""The ranks of a host that has an agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ring_keras._version import __version__
from ring_keras.launch.channel import Channel
from ring_keras.launch.frames import Message, Output, ProtocolError, field
from ring_keras.launch.launcher import Desk
from ring_keras.launch.output import STREAMS, say
from ring_keras.launch.places import Place
from ring_keras.launch.workers import Worker

__all__ = ["AgentCrew", "Plan"]


@dataclass(frozen=True)
class Plan:
    """What an agent is told to run.

    Attributes:
        command: Of each rank.
        directory: In which ranks start.
        environment: ringrun's own, for ranks to inherit.
        chosen: Variables that ringrun's options set.
        as_horovod: Whether `import horovod` finds `ring_keras.horovod`.
        bind_to_cores: Whether each rank keeps to cores of its own.
    """

    command: Sequence[str]
    directory: str
    environment: Mapping[str, str]
    chosen: Mapping[str, str]
    as_horovod: bool
    bind_to_cores: bool


class AgentCrew:
    """What an agent says of its ranks, and what it is told.

    Whoever owns the line to the agent gives it by `attach`, and says by `lose` that
    the agent is gone.

    Args:
        name: How messages call the host.
        desk: The launcher's.
    """

    def __init__(self, name: str, desk: Desk) -> None:
        self.name = name
        self.workers: list[Worker] = []
        self.hello: dict[str, Any] | None = None
        """What the agent said first; None until then."""
        self.reached: list[str] | None = None
        """Which addresses it reached; None until its ranks can be started."""
        self.gone: str | None = None
        """Why there is no agent any more; None while there is."""
        self._desk = desk
        self._channel: Channel | None = None
        self._finished = False

    @property
    def done(self) -> bool:
        """Whether the agent is gone."""
        return self.gone is not None

    def attach(self, channel: Channel) -> None:
        """Takes the line to the agent."""
        self._channel = channel

    def send(self, message: Message) -> None:
        """Tells the agent, if it is there."""
        if self._channel is not None:
            self._channel.send(message)

    def prepare(
        self,
        plan: Plan,
        places: Sequence[Place],
        addresses: Sequence[tuple[str, int]],
        nonce: str,
    ) -> None:
        """Asks whether ranks could be started, and which addresses are reached."""
        self._places = places
        self.send(
            {
                "type": "plan",
                **asdict(plan),
                "host_name": self.name,
                "places": [asdict(place) for place in places],
                "grace_period_s": self._desk.options.grace_period_s,
                "addresses": addresses,
                "nonce": nonce,
            }
        )

    def start(self, store_address: str) -> None:
        """Has the agent start its ranks."""
        for place in self._places:
            self._desk.output.add_fed_rank(place.rank)
            self.workers.append(
                Worker(place.rank, self.name, self._deliver_to(place.rank))
            )
        if self.gone is not None:
            self.lose(self.gone)  # Before it had any ranks to lose.
        self.send(
            {
                "type": "start",
                "store_address": store_address,
                "token": self._desk.token.hex(),
            }
        )

    def reaped(self, pid: int, returncode: int) -> None:
        """Its ranks are no children of this process."""

    def finish(self) -> None:
        """Lets the agent kill what its ranks left behind, and end."""
        self._finished = True
        self.send({"type": "finish"})

    def lose(self, reason: str) -> None:
        """The agent is gone, and so are its ranks."""
        self.gone = self.gone or reason
        if self._channel is not None:
            self._channel.close()
        for worker in self.workers:
            if worker.running:
                worker.lose(self.gone)
                self._desk.on_end(worker)
            for stream in STREAMS:
                self._desk.output.feed(worker.rank, stream, b"", lambda _nbytes: None)

    def take(self, message: Message) -> None:
        """Takes what the agent says."""
        if isinstance(message, Output):
            self._worker(message.rank)  # It is one of its own.
            self._desk.output.feed(
                message.rank, message.stream, message.data, self._note_written
            )
        elif message["type"] == "hello":
            self.hello = message
        elif message["type"] == "ready":
            self.reached = field(message, "reached", list)
        elif message["type"] == "refused":
            self.lose(field(message, "why", str))
        elif message["type"] == "started":
            worker = self._worker(field(message, "rank", int))
            worker.pid = field(message, "pid", int)
            if self._desk.options.verbose:
                say(f"rank {worker.rank} is pid {worker.pid} of host {self.name}")
        elif message["type"] == "ended":
            worker = self._worker(field(message, "rank", int))
            if worker.running:
                worker.end(field(message, "returncode", int))
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

    def _note_written(self, nbytes: int) -> None:
        """From the output's thread."""
        if nbytes:
            self._desk.loop.call_soon(
                lambda: self.send({"type": "written", "nbytes": nbytes})
            )

    def _worker(self, rank: int) -> Worker:
        for worker in self.workers:
            if worker.rank == rank:
                return worker
        raise ProtocolError(f"it has no rank {rank}")
