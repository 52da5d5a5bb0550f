"""`python -m ring_keras.launch.agent`: starts, watches and ends a host's ranks.

The launcher starts it, through ssh on another host, and speaks with it over its
standard input and output: see docs/design/0018-hosts.md.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

from ring_keras._libraries import build_problem
from ring_keras._version import __version__
from ring_keras.config import inherited_environment, is_slurm_task
from ring_keras.launch.addresses import reached_addresses
from ring_keras.launch.agent_door import AgentDoor, part_with
from ring_keras.launch.card import Card, CardError
from ring_keras.launch.connection import BEYOND_HEARTBEAT_S, Connection
from ring_keras.launch.doctor.agent_side import HostProgram
from ring_keras.launch.elastic_socket import Tell
from ring_keras.launch.environment import (
    added_variables,
    environment_for_ranks,
    host_environment,
    write_private,
)
from ring_keras.launch.forwarding import ForwardedOutput
from ring_keras.launch.frames import GREETING, Message, Output, ProtocolError, field
from ring_keras.launch.guard import RANKS_SIGNALS, keep_from_above, run_guarded
from ring_keras.launch.local_crew import HostJob, LocalCrew, RankOutput
from ring_keras.launch.loop import Loop
from ring_keras.launch.output import say
from ring_keras.launch.places import Place
from ring_keras.launch.rank_keeper import RankKeeper
from ring_keras.launch.reports import ReportPipe
from ring_keras.launch.succession import Succession
from ring_keras.launch.workers import Worker, signal_name
from ring_keras.network.addresses import own_addresses

_DEFAULT_GRACE_S = 10.0

# Of a loop, what gets messages, and what gets the reason for the connection's end.
Connect = Callable[[Loop, Callable[[Message], None], Callable[[str], None]], Connection]


class AgentOutput(RankOutput, Protocol):
    """What an agent does with what its ranks print."""

    @property
    def done(self) -> bool:
        """Whether all ranks' output has been passed on."""

    def written(self, nbytes: int) -> None:
        """The launcher has written so much."""

    def drop(self) -> None:
        """Nobody takes it any more: ranks must not wait for that."""


class _Line:
    """What comes from one launcher, while it is the one that the agent serves."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def take(self, message: Message) -> None:
        """Takes what it says."""
        if self._agent.line is self:
            self._agent.take(message)

    def note_end(self, reason: str) -> None:
        """It is gone."""
        if self._agent.line is self:
            self._agent.note_end_of_line(reason)


class Agent:
    """One host's ranks, until the launcher or the line to it is gone.

    Or, where the job has a card, until no other launcher has come in its place.

    By default the plan says all, and the launcher shows what ranks print.

    Args:
        front_fd: Reads end of file once the front has died.
        directory: For the secret.
    """

    connection: Connection
    output: AgentOutput

    def __init__(self, front_fd: int, directory: Path) -> None:
        self.loop = Loop(front_fd, directory, self.take_signal)
        self.plan: dict[str, Any] = {}
        """What the launcher wants."""
        self.kill_at: float | None = None
        """When what is left will be killed; None until ranks are told to end."""
        self.finishing = False
        """Whether the ranks of all hosts have ended."""
        self.line: _Line | None = None
        """To the launcher that is served; None: there can be one only."""
        self._directory = directory
        self._forwarded: ForwardedOutput | None = None
        self._keeper: RankKeeper | None = None
        self._door: AgentDoor | None = None
        self._succession: Succession | None = None
        self._crew: LocalCrew | None = None
        self._tells: dict[int, Tell] = {}
        self._doctor: HostProgram | None = None
        self._grace_s = _DEFAULT_GRACE_S
        # By when ranks must end as the job does; None: it does not.
        self._job_ends_at: float | None = None
        self._ended_because: str | None = None

    def run(self, connect: Connect, came: bytes = b"") -> int:
        """Serves the launcher at the other end; returns the exit code.

        Args:
            connect: Makes the connection.
            came: What the launcher has said so far.
        """
        self.line = _Line(self)
        self.connection = connect(self.loop, self.line.take, self.line.note_end)
        self._forwarded = ForwardedOutput(self.loop, self.connection)
        self.output = self._forwarded
        self.connection.send_raw(GREETING)
        self.connection.send(hello())
        self.connection.take(came)
        self.serve()
        return 0 if self.finishing else 1

    def serve(self) -> None:
        """Until there is nothing left to do; what is left then, the guard kills."""
        while not self.over():
            self.loop.turn(self._time_left())
            if self.kill_at is not None and self.kill_at <= time.monotonic():
                break
        self.connection.close()

    def over(self) -> bool:
        """Whether all has been done."""
        ended = self._crew is None or self._crew.done
        if self.finishing:
            return ended and self.output.done and self.connection.drained
        return self.kill_at is not None and ended

    def take(self, message: Message) -> None:
        """Takes what the launcher says."""
        if isinstance(message, Output):
            raise ProtocolError("a launcher prints nothing")
        if message["type"] == "plan":
            self._prepare(message)
        elif message["type"] == "start":
            self._start(message)
        elif message["type"] == "add":
            self._add(field(message, "rank", int), field(message, "size", int))
        elif message["type"] == "tell":
            rank, answer = field(message, "rank", int), field(message, "message", dict)
            if self._keeper is not None:
                self._keeper.note_answer(rank, answer)
            # For launchers, and in a large job more than a rank's socket takes.
            answer = {key: told for key, told in answer.items() if key != "members"}
            self._tells.get(rank, _drop)(answer)
        elif message["type"] == "signal":
            rank, number = field(message, "rank", int), field(message, "number", int)
            for worker in self.workers():
                if worker.rank != rank:
                    continue
                if number in RANKS_SIGNALS:
                    worker.pass_on(number)
                else:
                    worker.signal(number)
        elif message["type"] == "check":
            self._doctor = HostProgram(self.loop, _environment(message), self._answer)
        elif message["type"] == "question":
            if self._doctor is None:
                raise ProtocolError("a check must begin with what surrounds ranks")
            self._doctor.ask(field(message, "question", dict))
        elif message["type"] == "written":
            self.output.written(field(message, "nbytes", int))
        elif message["type"] == "card" and self._succession is not None:
            try:
                self._succession.take(Card.from_dict(field(message, "card", dict)))
            except CardError as error:
                raise ProtocolError(str(error)) from None
        elif message["type"] == "ending":
            self._note_ending(field(message, "grace_s", float))
        elif message["type"] == "dismiss":
            self.end_ranks("the job is over")
        elif message["type"] == "finish":
            self.finishing = True
            if self._door is not None:
                self._door.is_shut = True
            if self._crew is not None:
                self._crew.finish()
        else:
            raise ProtocolError(f"an agent knows no {message['type']!r}")

    def host_job(self) -> HostJob:
        """What ranks run here."""
        return HostJob(
            command=field(self.plan, "command", list),
            environment=_environment(self.plan),
            bind_to_cores=field(self.plan, "bind_to_cores", bool),
            verbose=False,
        )

    def problem(self) -> str | None:
        """Why no rank can be started here; None if they can."""
        missing = build_problem()
        if missing is not None:
            return missing
        try:
            os.chdir(field(self.plan, "directory", str))
        except OSError as error:
            return f"{error.filename}: {error.strerror}; ranks start there"
        job = self.host_job()
        if shutil.which(job.command[0], path=job.environment.get("PATH")) is None:
            return (
                f"{job.command[0]}: no such command; is it installed, and executable?"
            )
        return None

    def reached(self) -> list[str]:
        """Which of the launcher's addresses this host reaches."""
        return reached_addresses(
            field(self.plan, "addresses", list), field(self.plan, "nonce", str)
        )

    def token(self, message: dict[str, Any]) -> str:
        """The job's secret, in hexadecimal digits."""
        return field(message, "token", str)

    def take_signal(self, number: int) -> None:
        """Somebody wants an end, here, or something of the ranks."""
        if number in RANKS_SIGNALS:
            self.pass_on(number)
        else:
            self.end_ranks(f"the agent got {signal_name(number)}")

    def pass_on(self, number: int) -> None:
        """Gives the ranks of this host one of `RANKS_SIGNALS`."""
        # Slurm signals all processes of a step: the ranks have had it.
        if not is_slurm_task(inherited_environment()):
            for worker in self.workers():
                worker.pass_on(number)

    def note_end_of_line(self, reason: str) -> None:
        """The launcher is gone; if another one may come, ranks wait for it."""
        if self._keeper is None or self.finishing or self._ends:
            self.end_ranks(reason)
            return
        say(f"the launcher was lost: {reason}; the ranks of this host wait for another")
        self._keeper.begin_outage()

    def end_ranks(self, reason: str) -> None:
        """What the launcher would do, now that it cannot."""
        self.output.drop()
        if self._door is not None:
            self._door.is_shut = True
        if self.kill_at is not None or self.finishing:
            self.kill_at = time.monotonic()
            return
        if any(worker.running for worker in self.workers()):
            self._ended_because = reason
            say(f"{reason}: ending the ranks of this host")
        self.kill_at = self._job_ends_at
        if self.kill_at is None:
            self.kill_at = time.monotonic() + self._grace_s
        for worker in self.workers():
            # Who saves its work at SIGINT may not know SIGTERM, and would die of it.
            if self._job_ends_at is None or not worker.told_to_stop:
                worker.signal(signal.SIGTERM)

    @property
    def _ends(self) -> bool:
        """Whether ranks have been told to end, by the launcher or in its place."""
        return self.kill_at is not None or self._job_ends_at is not None

    def _note_ending(self, grace_s: float) -> None:
        """The launcher ends the job. If it is lost now, nobody shall go on with it."""
        self._job_ends_at = time.monotonic() + grace_s
        if self._door is not None:
            self._door.is_shut = True

    def workers(self) -> list[Worker]:
        """The ranks of this host, once they are started."""
        return [] if self._crew is None else self._crew.workers

    def _time_left(self) -> float | None:
        if self.kill_at is None:
            return None
        return max(0.0, self.kill_at - time.monotonic())

    def _prepare(self, plan: dict[str, Any]) -> None:
        self._grace_s = field(plan, "grace_period_s", float)
        self.connection.silence_s = field(plan, "silence_s", float)
        self.plan = plan
        problem = self.problem()
        if problem is not None:
            self._refuse(problem)
            return
        self.connection.send(
            {
                "type": "ready",
                "reached": self.reached(),
                "addresses": own_addresses(),
            }
        )

    def _start(self, message: dict[str, Any]) -> None:
        token_file = self._directory / "token"
        write_private(token_file, self.token(message))
        report_pipe = None
        if field(message, "reports", bool):
            path = self._directory / "reports"
            report_pipe = ReportPipe(self.loop, path, self._pass_on).path
        places = [Place(**place) for place in field(self.plan, "places", list)]
        self._crew = LocalCrew(
            len(places),
            self.host_job(),
            self.loop,
            token_file,
            self.output,
            self._note_end,
            report_pipe=report_pipe,
        )
        self._crew.places = places
        if field(message, "elastic", bool):
            self._crew.on_join = self._note_join
        try:
            self._crew.start(field(message, "store_address", str))
            if "term" in message:
                self._keep_ranks(message)
        except OSError as error:
            self._refuse(f"cannot start the ranks: {error}")
            return
        for worker in self._crew.workers:
            self._note_start(worker)

    def _keep_ranks(self, message: dict[str, Any]) -> None:
        """From now on they outlive the launcher."""
        assert self._forwarded is not None
        outage_s = field(self.plan, "silence_s", float) + BEYOND_HEARTBEAT_S
        self._keeper = keeper = RankKeeper(
            self.loop,
            self._forwarded,
            self.workers,
            outage_s,
            lambda: self.connection.silent_s,
            self.end_ranks,
        )
        self._door = AgentDoor(
            self.loop,
            field(message, "launcher", str),
            bytes.fromhex(self.token(message)),
            field(message, "term", int),
            lambda: {**hello(), **keeper.facts()},
            self._serve_next,
        )
        address = self._door.address
        self._succession = Succession(
            self.loop,
            self._directory,
            address,
            outage_s,
            lambda: 0.0 if self._ends else keeper.alone_s(),
        )
        self.connection.send({"type": "door", "address": address})

    def _serve_next(self, connection: Connection, term: int) -> _Line:
        """Somebody takes the job over; whoever had it is told so."""
        assert self._keeper is not None
        part_with(self.loop, self.connection, {"type": "superseded", "term": term})
        connection.silence_s = field(self.plan, "silence_s", float)
        self.connection, self.line = connection, _Line(self)
        self._keeper.end_outage(connection)
        return self.line

    def _add(self, number: int, size: int) -> None:
        if self._crew is None or self._crew.on_join is None:
            raise ProtocolError("the job is not elastic, or has not started")
        try:
            worker = self._crew.add(number, size)
        except OSError as error:  # Those that run here go on.
            self._send_end(number, 1, f"; it could not be started: {error}")
            return
        self._note_start(worker)

    def _note_join(self, number: int, has_state: bool, tell: Tell) -> None:
        self._tells[number] = tell
        if self._keeper is not None:
            self._keeper.note_join(number, has_state)
        self.connection.send({"type": "join", "rank": number, "has_state": has_state})

    def _note_start(self, worker: Worker) -> None:
        self.connection.send(
            {"type": "started", "rank": worker.rank, "pid": worker.pid}
        )

    def _pass_on(self, report: dict[str, Any]) -> None:
        self.connection.send({"type": "report", "report": report})

    def _answer(self, answer: dict[str, Any]) -> None:
        self.connection.send({"type": "answer", "answer": answer})

    def _refuse(self, why: str) -> None:
        self.connection.send({"type": "refused", "why": why})

    def _note_end(self, worker: Worker) -> None:
        assert worker.returncode is not None
        self._send_end(worker.rank, worker.returncode, worker.remark)

    def _send_end(self, rank: int, returncode: int, remark: str) -> None:
        self.connection.send(
            {
                "type": "ended",
                "rank": rank,
                "returncode": returncode,
                "remark": remark,
                "because": self._ended_because,
            }
        )


def hello() -> dict[str, Any]:
    """What an agent says first."""
    return {
        "type": "hello",
        "ring_keras": __version__,
        "python": platform.python_version(),
        "tensorflow": _tensorflow_version(),
    }


def _drop(_message: dict[str, Any]) -> None:
    """Takes what is for a process that has asked for nothing."""


def _tensorflow_version() -> str:
    """Without importing it, which would take seconds; empty if there is none."""
    for name in ("tensorflow", "tensorflow-cpu"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return ""


def _environment(plan: dict[str, Any]) -> Mapping[str, str]:
    """What ranks get here: this host's own, the launcher's, and what was chosen."""
    inherited = host_environment(
        environment_for_ranks(), field(plan, "environment", dict)
    )
    added = added_variables(
        size=len(field(plan, "places", list)),
        inherited=inherited,
        chosen={
            "RING_KERAS_HOST_NAME": field(plan, "host_name", str),
            **field(plan, "chosen", dict),
        },
        as_horovod=field(plan, "as_horovod", bool),
    )
    return inherited | added


def main() -> int:
    """Runs the agent of a launcher at standard input and output."""
    parser = argparse.ArgumentParser(prog="python -m ring_keras.launch.agent")
    parser.add_argument(
        "--kept",
        action="store_true",
        help="do not end with the launcher: keep the ranks for the next one",
    )
    if parser.parse_args().kept:
        keep_from_above()
    # What this process or a library prints must not fall between the frames.
    read_fd, write_fd = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)

    def connect(
        loop: Loop, on_message: Callable[[Message], None], on_end: Callable[[str], None]
    ) -> Connection:
        return Connection(loop, read_fd, write_fd, on_message=on_message, on_end=on_end)

    return run_guarded(lambda *given: Agent(*given).run(connect), what="agent")


if __name__ == "__main__":
    sys.exit(main())
