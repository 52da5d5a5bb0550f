"""One job that is started by the same command on every host: the other nodes' side."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

from ring_keras._libraries import build_problem
from ring_keras.launch.agent import Agent, hello
from ring_keras.launch.connection import Connection, tls_buffer
from ring_keras.launch.desk import LaunchOptions
from ring_keras.launch.frames import Message, ProtocolError, field
from ring_keras.launch.guard import RANKS_SIGNALS
from ring_keras.launch.local_crew import HostJob
from ring_keras.launch.loop import Loop
from ring_keras.launch.nodes import NodeOptions, encryption_differs
from ring_keras.launch.output import OutputPump, say
from ring_keras.launch.secret_proof import (
    CONNECTED,
    LISTENER,
    SecretProof,
    answer_to,
)

__all__ = ["NodeAgent"]

_CONNECT_TIMEOUT_S = 2.0
_RETRY_S = 0.5


class _ShownOutput:
    """Shows what ranks print on this node's own terminal."""

    def __init__(self, loop: Loop, pump: OutputPump) -> None:
        self._loop = loop
        self._pump = pump
        self._held = False
        self.done = True

    def add_rank(self, rank: int, stdout_fd: int, stderr_fd: int) -> None:
        """Takes over the reading ends of a rank's pipes."""
        self._pump.add_rank(rank, stdout_fd, stderr_fd)

    def abandon(self) -> None:
        """All ranks have ended, and what they have left holds their pipes open."""
        self._pump.abandon()

    def start(self, more_may_come: bool) -> None:
        """When ranks have been added; all of them, or others `finish` ends."""
        self.done = False
        self._held = more_may_come
        if more_may_come:
            self._pump.hold()
        self._pump.start()
        self._loop.on_readable(self._pump.done_fd, self._note_done)

    def finish(self) -> None:
        """No rank will be added any more."""
        if self._held:
            self._held = False
            self._pump.release()

    def written(self, nbytes: int) -> None:
        """Nobody else writes it."""

    def drop(self) -> None:
        """It is still shown: nobody is waited for."""

    def _note_done(self) -> None:
        self.done = True
        self._loop.forget(self._pump.done_fd)


class NodeAgent(Agent):
    """This node's ranks, for the launcher on node 0.

    Args:
        node: Which node this is.
        launch: How this node's output is shown.
        job: What its ranks run.
        front_fd: Reads end of file once the front has died.
        directory: For files of the job.
    """

    def __init__(
        self,
        node: NodeOptions,
        launch: LaunchOptions,
        job: HostJob,
        front_fd: int,
        directory: Path,
    ) -> None:
        super().__init__(front_fd, directory)
        self._node = node
        self._job = job
        self._proof: SecretProof | None = None
        self._known = False
        self._interrupt: int | None = None
        self._exit_code: int | None = None
        self._told_finished = False
        self._pump = OutputPump(
            launch.output_directory,
            colour=launch.colour,
            timestamps=launch.timestamps,
            raw=launch.raw,
            on_broken=lambda: self.loop.call_soon(
                lambda: self.take_signal(signal.SIGPIPE)
            ),
        )
        self.output = self._shown = _ShownOutput(self.loop, self._pump)

    def run_node(self) -> int:
        """Joins node 0, and serves it; returns ringrun's exit code."""
        problem = self.problem()
        if problem is not None:
            say(problem)
            return 1
        read_fd = self._connect()
        if read_fd is not None:
            self.connection = Connection(
                self.loop,
                read_fd,
                os.dup(read_fd),
                on_message=self.take,
                on_end=self.end_ranks,
                trusted=False,
            )
            self.serve()
        if self._exit_code is not None:
            return self._exit_code
        return 1 if self._interrupt is None else 128 + self._interrupt

    def over(self) -> bool:
        """Whether node 0 has said how the job ended, or cannot."""
        if self.finishing and not self._told_finished and super().over():
            self._told_finished = True
            self.connection.send({"type": "finished"})
        if self._exit_code is not None:
            return not any(worker.running for worker in self.workers())
        return not self.finishing and super().over()

    def take(self, message: Message) -> None:
        """Takes what node 0 says."""
        if not isinstance(message, dict):
            raise ProtocolError("a launcher prints nothing")
        if message["type"] == "challenge":
            self._answer(message)
        elif message["type"] == "welcome":
            self._check(message)
        elif not self._known:
            raise ProtocolError("it has not proven that it holds the secret")
        elif message["type"] == "verdict":
            self._exit_code = field(message, "exit_code", int)
            if message.get("message") is not None:
                for hint in self._pump.hints:
                    say(hint)
                say(f"{message['message']} (said by node 0)")
            self.end_ranks("the job is over")
        else:
            super().take(message)
            if message["type"] == "start":
                more_may_come = field(message, "elastic", bool)
                if more_may_come or self.workers():
                    self._shown.start(more_may_come)
            elif message["type"] == "finish":
                self._shown.finish()

    def host_job(self) -> HostJob:
        """As this node's command line has it."""
        return self._job

    def problem(self) -> str | None:
        """The command line's own checks have been made."""
        return build_problem()

    def reached(self) -> list[str]:
        """It has reached node 0 where the store will be."""
        return []

    def token(self, message: dict[str, Any]) -> str:
        """It is in a file here, and does not travel."""
        return self._node.token.hex()

    def take_signal(self, number: int) -> None:
        """Ends the whole job: node 0 decides how."""
        if number in RANKS_SIGNALS:
            self.pass_on(number)
            return
        again = self._interrupt is not None
        self._interrupt = self._interrupt or number
        if again or not self._known:
            self.kill_at = time.monotonic()
        else:
            self.connection.send({"type": "interrupt", "number": number})

    def end_ranks(self, reason: str) -> None:
        """Node 0, or the line to it, is gone; or it has given its verdict."""
        if self._exit_code is None and self.kill_at is None:
            where = f"node 0 at {self._node.rendezvous}"
            if self._known:
                say(f"[RK814] {where} was lost: {reason}")
            else:
                say(
                    f"[RK814] {where} does not let this node in: {reason}. Is "
                    "--secret-file the same on every node?"
                )
        super().end_ranks(reason)

    def _connect(self) -> int | None:
        """A socket to node 0; None, once that is said, if there is none in time."""
        deadline = time.monotonic() + self._node.init_timeout_s
        address = (self._node.host, self._node.port)
        while self.kill_at is None:
            try:
                peer = socket.create_connection(address, _CONNECT_TIMEOUT_S)
                return peer.detach()
            except OSError as error:
                if time.monotonic() > deadline:
                    say(
                        f"[RK814] no node 0 at {self._node.rendezvous} within "
                        f"{self._node.init_timeout_s:g} s: {error.strerror or error}"
                    )
                    return None
            self.loop.turn(_RETRY_S)
        return None

    def _answer(self, message: dict[str, Any]) -> None:
        encrypts = self._node.encrypt
        self._proof, answer = answer_to(
            message, self._node.token, CONNECTED, encrypts=encrypts
        )
        self.connection.send(answer)
        first_encrypts = field(message, "encrypt", bool)
        if first_encrypts != encrypts:
            self._exit_code = 1
            say(encryption_differs(first_encrypts, "this node"))
            self.end_ranks("the job is over")
        elif encrypts:
            key = self._proof.key()
            self.connection.encrypt(tls_buffer(server=False, key=key))

    def _check(self, message: dict[str, Any]) -> None:
        if self._proof is None:
            raise ProtocolError("it has asked for no proof")
        self._proof.require(LISTENER, message)
        self._known = True
        self.connection.trust()
        self.connection.send(
            {
                **hello(),
                "node_rank": self._node.rank,
                "nodes": self._node.count,
                "ranks": self._node.ranks,
                "elastic": self._node.elastic,
                "host_name": socket.gethostname(),
            }
        )
