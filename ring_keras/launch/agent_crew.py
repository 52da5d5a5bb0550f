"""The ranks of a host that has an agent."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ring_keras.launch.agent_line import AgentLine
from ring_keras.launch.crew import Crew
from ring_keras.launch.desk import Desk
from ring_keras.launch.frames import Message, Output, ProtocolError, field
from ring_keras.launch.output import STREAMS
from ring_keras.launch.places import Place
from ring_keras.launch.reports import checked
from ring_keras.launch.workers import Worker

__all__ = ["AgentCrew"]


class AgentCrew(Crew):
    """What an agent says of its ranks, and what it is told.

    Args:
        line: To the agent.
        slots: How many ranks it may have at a time.
        desk: The launcher's.
    """

    def __init__(self, line: AgentLine, slots: int, desk: Desk) -> None:
        super().__init__(line.name, slots)
        self.line = line
        self.prepared = False
        """Whether it has been asked to get ready."""
        self.reached: list[str] | None = None
        """Which addresses it reached; None until its ranks can be started."""
        self.addresses: list[str] = []
        """Its host's own, as far as it has said so."""
        self._desk = desk
        line.on_message = self.take
        line.on_lost = self._lose_ranks

    @property
    def gone(self) -> str | None:
        """Why there is no agent any more; None while there is."""
        return self.line.gone

    @property
    def silent_s(self) -> float:
        """Since when nothing has come from its agent."""
        return self.line.silent_s

    def give_up(self, why: str) -> None:
        """Its agent is not waited for any more."""
        self.line.give_up(why)

    @property
    def done(self) -> bool:
        """Whether the agent is gone."""
        return self.gone is not None

    def prepare(self, places: Sequence[Place], **plan: Any) -> None:
        """Asks whether ranks could be started at these places."""
        self.prepared = True
        self.places = places
        self.line.send(
            {
                "type": "plan",
                "places": [asdict(place) for place in places],
                "grace_period_s": self._desk.options.grace_period_s,
                "silence_s": self._desk.options.all_silent_s,
                **plan,
            }
        )

    def start(self, store_address: str) -> None:
        """Has the agent start its ranks, or get ready to start some."""
        super().start(store_address)
        if self.on_join is None:
            for place in self.places:
                self._expect(place.rank)
        if self.gone is not None:
            self._lose_ranks()  # Before it had any to lose.
        self.line.send(
            {
                "type": "start",
                "elastic": self.on_join is not None,
                "store_address": store_address,
                "reports": self._desk.watch.report_pipe is not None,
                **self.secrets(),
            }
        )

    def add(self, number: int, size: int) -> Worker:
        """Has the agent start one more."""
        worker = self._expect(number)
        self.line.send({"type": "add", "rank": number, "size": size})
        return worker

    def secrets(self) -> dict[str, str]:
        """What the agent learns last, and from here alone: the job's secret."""
        return {"token": self._desk.token.hex()}

    def expect_output(self, rank: int) -> None:
        """A rank will be started, and the agent will bring its output."""
        self._desk.output.add_fed_rank(rank)

    def end_output(self, rank: int) -> None:
        """Or the output would wait for it."""
        for stream in STREAMS:
            self._desk.output.feed(rank, stream, b"", lambda _nbytes: None)

    def take_output(self, output: Output) -> None:
        """To the terminal and the files here."""
        self._desk.output.feed(
            output.rank, output.stream, output.data, self._note_written
        )

    def finish(self) -> None:
        """Lets the agent kill what its ranks left behind."""
        super().finish()
        self.line.send({"type": "finish"})
        if self.line.hello is None:
            self.line.give_up("nothing is needed of it, and it has not greeted")

    def take(self, message: Message) -> None:
        """Takes what the agent says."""
        if isinstance(message, Output):
            self._worker(message.rank)  # It is one of its own.
            self.take_output(message)
        elif message["type"] == "ready":
            self.reached = field(message, "reached", list)
            self.addresses = field(message, "addresses", list)
        elif message["type"] == "refused":
            self.line.lose(field(message, "why", str))
        elif message["type"] == "started":
            worker = self._worker(field(message, "rank", int))
            worker.pid = field(message, "pid", int)
            if self._desk.options.verbose:
                self._desk.output.say(
                    f"rank {worker.rank} is pid {worker.pid} of {self.title}"
                )
        elif message["type"] == "join":
            self._note_join(field(message, "rank", int), message)
        elif message["type"] == "report":
            # Ranks may write anything there; it ends no line.
            with contextlib.suppress(ValueError):
                report = checked(message.get("report"))
                own = any(worker.rank == report["rank"] for worker in self.workers)
                # Where ranks join, the workers' are processes' numbers.
                if own or self.on_join is not None:
                    self._desk.watch.take_report(report)
        elif message["type"] == "ended":
            worker = self._worker(field(message, "rank", int))
            if worker.running:
                code = field(message, "returncode", int)
                worker.told_by_host = because = message.get("because")
                if not worker.pid:
                    self.end_output(worker.rank)  # It could not be started.
                if code == 0 and because is not None and not worker.told_to_stop:
                    # It has obeyed its agent: its work is not done.
                    worker.lose(f"{self.title} was lost: {because}")
                else:
                    worker.end(code, field(message, "remark", str))
                self._desk.on_end(worker)
        else:
            raise ProtocolError(f"no agent says {message['type']!r}")

    def _expect(self, rank: int) -> Worker:
        self.expect_output(rank)
        worker = Worker(rank, self.name, functools.partial(self._deliver, rank))
        self.workers.append(worker)
        return worker

    def _deliver(self, rank: int, number: int) -> None:
        self.line.send({"type": "signal", "rank": rank, "number": int(number)})

    def _note_join(self, number: int, message: dict[str, Any]) -> None:
        if self.on_join is None or all(w.rank != number for w in self.workers):
            raise ProtocolError(f"it has no process {number}")

        def tell(answer: dict[str, Any]) -> None:
            self.line.send({"type": "tell", "rank": number, "message": answer})

        self.on_join(number, field(message, "has_state", bool), tell)

    def _note_written(self, nbytes: int) -> None:
        """From the output's thread."""
        if nbytes:
            written = {"type": "written", "nbytes": nbytes}
            self._desk.loop.call_soon(lambda: self.line.send(written))

    def _lose_ranks(self) -> None:
        for worker in self.workers:
            if worker.running:
                worker.lose(f"{self.title} was lost: {self.gone}")
                self._desk.on_end(worker)
            self.end_output(worker.rank)

    def _worker(self, rank: int) -> Worker:
        for worker in self.workers:
            if worker.rank == rank:
                return worker
        raise ProtocolError(f"it has no rank {rank}")
