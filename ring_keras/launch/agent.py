"""`python -m ring_keras.launch.agent`: starts, watches and ends a host's ranks.

The launcher starts it, through ssh on another host, and speaks with it over its
standard input and output: see docs/design/0018-hosts.md.
"""

from __future__ import annotations

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

from ring_keras._libraries import rebuild_command
from ring_keras._version import __version__
from ring_keras.config import inherited_environment
from ring_keras.launch.addresses import reached_addresses
from ring_keras.launch.channel import Channel
from ring_keras.launch.crew import HostJob, LocalCrew, RankOutput, write_private
from ring_keras.launch.environment import added_variables, host_environment
from ring_keras.launch.forwarding import ForwardedOutput
from ring_keras.launch.frames import GREETING, Message, Output, ProtocolError, field
from ring_keras.launch.guard import reap, run_guarded
from ring_keras.launch.loop import Loop
from ring_keras.launch.output import say
from ring_keras.launch.places import Place
from ring_keras.launch.workers import Worker

_DEFAULT_GRACE_S = 10.0


class AgentOutput(RankOutput, Protocol):
    """What an agent does with what its ranks print."""

    @property
    def done(self) -> bool:
        """Whether all ranks' output has been passed on."""

    def written(self, nbytes: int) -> None:
        """The launcher has written so much."""

    def drop(self) -> None:
        """Nobody takes it any more: ranks must not wait for that."""


class Agent:
    """One host's ranks, until the launcher or the line to it is gone.

    Args:
        front_fd: Reads end of file once the front has died.
        directory: For the secret.
    """

    def __init__(self, front_fd: int, directory: Path) -> None:
        self._directory = directory
        self._loop = Loop(front_fd, self._take_signal)
        self._crew: LocalCrew | None = None
        self._plan: dict[str, Any] = {}
        self._grace_s = _DEFAULT_GRACE_S
        self._kill_at: float | None = None
        self._finishing = False

    def run(self, read_fd: int, write_fd: int) -> int:
        """Serves the launcher at the other end; returns the exit code."""
        self._channel = Channel(
            self._loop,
            read_fd,
            write_fd,
            on_message=self._take,
            on_end=self._end_ranks,
        )
        self._output = ForwardedOutput(self._loop, self._channel)
        self._channel.send_raw(GREETING)
        self._channel.send(hello())
        while not self._over():
            self._loop.turn(self._time_left())
            while (ended := reap()) is not None:
                if self._crew is not None:
                    self._crew.reaped(*ended)
            if self._kill_at is not None and self._kill_at <= time.monotonic():
                break  # The guard kills all that is left.
        self._channel.close()
        return 0 if self._finishing else 1

    def _over(self) -> bool:
        ended = self._crew is None or self._crew.done
        if self._finishing:
            return ended and self._output.done and self._channel.drained
        return self._kill_at is not None and ended

    def _time_left(self) -> float | None:
        if self._kill_at is None:
            return None
        return max(0.0, self._kill_at - time.monotonic())

    def _take(self, message: Message) -> None:
        if isinstance(message, Output):
            raise ProtocolError("a launcher prints nothing")
        handlers: dict[str, Callable[[dict[str, Any]], None]] = {
            "plan": self._prepare,
            "start": self._start,
            "signal": self._signal,
            "written": lambda found: self._output.written(field(found, "nbytes", int)),
            "finish": self._finish,
        }
        if message["type"] not in handlers:
            raise ProtocolError(f"an agent knows no {message['type']!r}")
        handlers[message["type"]](message)

    def _prepare(self, plan: dict[str, Any]) -> None:
        self._grace_s = field(plan, "grace_period_s", float)
        self._plan = plan
        problem = self._problem(plan)
        if problem is not None:
            self._refuse(problem)
            return
        reached = reached_addresses(
            field(plan, "addresses", list), field(plan, "nonce", str)
        )
        self._channel.send({"type": "ready", "reached": reached})

    def _problem(self, plan: dict[str, Any]) -> str | None:
        """Why no rank can be started here; None if they can."""
        try:
            from ring_keras import _native  # noqa: F401
        except ImportError as error:
            return f"ring_keras is not built ({error}); build it: {rebuild_command()}"
        try:
            os.chdir(field(plan, "directory", str))
        except OSError as error:
            return f"{error.filename}: {error.strerror}; ranks start there"
        command = field(plan, "command", list)
        path = _environment(plan).get("PATH")
        if shutil.which(command[0], path=path) is None:
            return f"{command[0]}: no such command; is it installed, and executable?"
        return None

    def _start(self, message: dict[str, Any]) -> None:
        token_file = self._directory / "token"
        write_private(token_file, field(message, "token", str))
        plan = self._plan
        job = HostJob(
            command=field(plan, "command", list),
            environment=_environment(plan),
            bind_to_cores=field(plan, "bind_to_cores", bool),
            verbose=False,
        )
        self._crew = LocalCrew(
            [Place(**place) for place in field(plan, "places", list)],
            job,
            token_file,
            self._output,
            self._note_end,
            field(plan, "host_name", str),
        )
        try:
            self._crew.start(field(message, "store_address", str))
        except OSError as error:
            self._refuse(f"cannot start the ranks: {error}")
            return
        for worker in self._crew.workers:
            self._channel.send(
                {"type": "started", "rank": worker.rank, "pid": worker.pid}
            )

    def _signal(self, message: dict[str, Any]) -> None:
        rank, number = field(message, "rank", int), field(message, "number", int)
        for worker in self._workers():
            if worker.rank == rank:
                worker.signal(number)

    def _finish(self, _message: dict[str, Any]) -> None:
        self._finishing = True
        if self._crew is not None:
            self._crew.finish()

    def _refuse(self, why: str) -> None:
        self._channel.send({"type": "refused", "why": why})

    def _note_end(self, worker: Worker) -> None:
        self._channel.send(
            {"type": "ended", "rank": worker.rank, "returncode": worker.returncode}
        )

    def _take_signal(self, number: int) -> None:
        if number != signal.SIGCHLD:
            self._end_ranks(f"the agent got {signal.Signals(number).name}")

    def _end_ranks(self, reason: str) -> None:
        """What the launcher would do, now that it cannot."""
        self._output.drop()
        if self._kill_at is not None or self._finishing:
            self._kill_at = time.monotonic()
            return
        if any(worker.running for worker in self._workers()):
            say(f"{reason}: ending the ranks of this host")
        for worker in self._workers():
            worker.signal(signal.SIGTERM)
        self._kill_at = time.monotonic() + self._grace_s

    def _workers(self) -> list[Worker]:
        return [] if self._crew is None else self._crew.workers


def hello() -> dict[str, Any]:
    """What an agent says first."""
    return {
        "type": "hello",
        "ring_keras": __version__,
        "python": platform.python_version(),
        "tensorflow": _tensorflow_version(),
    }


def _tensorflow_version() -> str:
    """Without importing it, which would take seconds; empty if there is none."""
    for name in ("tensorflow", "tensorflow-cpu"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return ""


def _environment(plan: dict[str, Any]) -> Mapping[str, str]:
    """What ranks get here: this host's own, the launcher's, and what was chosen."""
    inherited = host_environment(
        inherited_environment(), field(plan, "environment", dict)
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
    # What this process or a library prints must not fall between the frames.
    read_fd, write_fd = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    return run_guarded(
        lambda front_fd, directory: Agent(front_fd, directory).run(read_fd, write_fd),
        what="agent",
    )


if __name__ == "__main__":
    sys.exit(main())
