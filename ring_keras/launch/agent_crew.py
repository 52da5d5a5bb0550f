"""The ranks of a host that has an agent."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ring_keras.launch.agent_line import AgentLine
from ring_keras.launch.card import Card, CardAgent
from ring_keras.launch.crew import Crew
from ring_keras.launch.desk import Desk
from ring_keras.launch.elastic_socket import Tell
from ring_keras.launch.frames import Message, Output, ProtocolError, field
from ring_keras.launch.last_generation import Found
from ring_keras.launch.output import STREAMS
from ring_keras.launch.places import Place
from ring_keras.launch.reports import checked
from ring_keras.launch.tenure import Tenure
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
        self.listed_as = line.name
        """How the list of hosts calls its own."""
        self.addresses: list[str] = []
        """Its host's own, as far as it has said so."""
        self.taken_over = False
        """Whether it has said whose ranks another launcher has left with it."""
        self._dismissed = False
        self._tenure: Tenure | None = None  # Where it is on the card.
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

    @property
    def parted(self) -> bool:
        """Its ranks, if there are any, must not be kept for another launcher."""
        return not self._dismissed or self.gone is not None

    def dismiss(self, exit_code: int, message: str | None) -> None:
        """Its ranks end now, at the latest."""
        super().dismiss(exit_code, message)
        keeps = self.started and self._desk.options.tenure is not None
        if keeps and self.gone is None:
            self._dismissed = True
            self.line.send({"type": "dismiss"})

    def note_ending(self, grace_s: float) -> None:
        """No other launcher shall go on with its ranks, if this one is lost."""
        if self.started and self._desk.options.tenure is not None:
            self.line.send({"type": "ending", "grace_s": grace_s})

    def take_card(self, card: Card) -> None:
        """Its agent may have to start that launcher."""
        if self._tenure is not None:
            self.line.send({"type": "card", "card": card.as_dict()})

    def take_over(self, term: int) -> None:
        """Asks the agent to serve this launcher, which is the job's next."""
        self.line.send({"type": "take_over", "term": term})

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
                **self._terms(),
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

    def _terms(self) -> dict[str, Any]:
        """What it must know if it shall keep its ranks for another launcher."""
        tenure = self._desk.options.tenure
        if tenure is None:
            return {}
        return {"term": tenure.term, "launcher": tenure.launcher_host}

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
        elif message["type"] == "door" and self._desk.options.tenure is not None:
            self._tenure = self._desk.options.tenure
            address = field(message, "address", str)
            self._tenure.add(CardAgent(self.name, self.listed_as, self.slots, address))
        elif message["type"] == "holds":
            for process in field(message, "processes", list):
                self._find(process)
            self._tenure = self._desk.options.tenure
            self.started = self.taken_over = True
        elif message["type"] == "superseded":
            self._desk.on_superseded(field(message, "term", int))
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

    def _find(self, process: dict[str, Any]) -> None:
        """Takes what it says of one that another launcher has started."""
        number = field(process, "number", int)
        worker = Worker(number, self.name, functools.partial(self._deliver, number))
        worker.pid = field(process, "pid", int)
        worker.told_to_stop = field(process, "told_to_stop", bool)
        if process["returncode"] is not None:
            worker.end(field(process, "returncode", int), field(process, "remark", str))
        self.workers.append(worker)
        if process["open"]:
            self.expect_output(number)
            for stream in set(STREAMS).difference(process["open"]):
                self._desk.output.feed(number, stream, b"", lambda _nbytes: None)
        tell = self._tell_of(number)
        self.found.append(Found(worker, tell, process["asks"], process["place"]))

    def _tell_of(self, number: int) -> Tell:
        def tell(answer: dict[str, Any]) -> None:
            self.line.send({"type": "tell", "rank": number, "message": answer})

        return tell

    def _note_join(self, number: int, message: dict[str, Any]) -> None:
        has_state = field(message, "has_state", bool)
        found = [one for one in self.found if one.worker.rank == number]
        if self.on_join is not None and any(w.rank == number for w in self.workers):
            self.on_join(number, has_state, self._tell_of(number))
        elif found and self.on_join is None:
            found[0].asks = has_state  # Those who will answer look for it soon.
        else:
            raise ProtocolError(f"it has no process {number}")

    def _note_written(self, nbytes: int) -> None:
        """From the output's thread."""
        if nbytes:
            written = {"type": "written", "nbytes": nbytes}
            self._desk.loop.call_soon(lambda: self.line.send(written))

    @property
    def keeps_ranks(self) -> bool:
        """Whether its agent may have ranks yet, and wait for another launcher."""
        return self._tenure is not None and not self.line.has_ended

    def _lose_ranks(self) -> None:
        if self._tenure is not None and self.line.has_ended:
            self._tenure.drop(self.name)
        for worker in self.workers:
            if worker.running:
                worker.may_run = not self.line.has_ended
                worker.lose(f"{self.title} was lost: {self.gone}")
                self._desk.on_end(worker)
            self.end_output(worker.rank)

    def _worker(self, rank: int) -> Worker:
        for worker in self.workers:
            if worker.rank == rank:
                return worker
        raise ProtocolError(f"it has no rank {rank}")
