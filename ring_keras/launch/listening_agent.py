"""`python -m ring_keras.launch.listening_agent`: waits for launchers' calls.

For hosts without sshd, such as pods. Who calls and shows that it holds the secret
gets an agent, as ssh would start it; `ringrun --agent-port` calls.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ring_keras.config import ConfigError, read_token, split_address
from ring_keras.launch.agent import Agent, build_problem, hello
from ring_keras.launch.connection import Connection, tls_buffer
from ring_keras.launch.forwarding import ForwardedOutput
from ring_keras.launch.frames import GREETING, Message, ProtocolError, field
from ring_keras.launch.guard import (
    FORWARDED_SIGNALS,
    RANKS_SIGNALS,
    heard_signals,
    reap,
    run_guarded,
)
from ring_keras.launch.output import say
from ring_keras.launch.secret_proof import (
    CALLED,
    CALLER,
    connection_key,
    is_proof,
    new_nonce,
    proof,
)

__all__ = ["serve_calls"]

# Untrusted peers may connect as well, and cost no more than this.
_MAX_CANDIDATES = 64
_CANDIDATE_TICKS = 10
_MAX_UNTRUSTED_TOLD = 10
_UNTRUSTED = 3


class CalledAgent(Agent):
    """The agent of whoever has connected, if that holds the secret.

    Args:
        peer: The connection.
        token: The secret.
        trusted_fd: Gets a byte once the caller has shown that it holds it.
        front_fd: Reads end of file once the front has died.
        directory: For files of the job.
    """

    def __init__(
        self,
        peer: socket.socket,
        token: bytes,
        trusted_fd: int,
        front_fd: int,
        directory: Path,
    ) -> None:
        super().__init__(front_fd, directory)
        self._peer = peer
        self._token = token
        self._trusted_fd = trusted_fd
        self._nonce = new_nonce()
        self._known = self._refused = False
        self._ticks = _CANDIDATE_TICKS

    def run_called(self) -> int:
        """Serves the caller; returns the exit code."""
        read_fd = self._peer.detach()
        connection = Connection(
            self.loop,
            read_fd,
            os.dup(read_fd),
            on_message=self.take,
            on_end=self.end_ranks,
            trusted=False,
        )
        connection.send({"type": "challenge", "nonce": self._nonce})
        self.loop.on_tick(self._tick)
        self.serve(connection, ForwardedOutput(self.loop, connection))
        if self._refused:
            return _UNTRUSTED
        return 0 if self.finishing or not self._known else 1

    def take(self, message: Message) -> None:
        """Takes what the caller says."""
        if self._known:
            super().take(message)
        elif isinstance(message, dict) and message["type"] == "answer":
            self._check(field(message, "nonce", str), field(message, "proof", str))
        else:
            raise ProtocolError("it has not shown that it holds the secret")

    def _check(self, theirs: str, given: str) -> None:
        if not is_proof(given, self._token, CALLER, self._nonce, theirs, True):
            self._refused = True
            raise ProtocolError("it has not the secret")
        key = connection_key(self._token, self._nonce, theirs)
        self.connection.encrypt(tls_buffer(server=True, key=key))
        self.connection.trust()
        self._known = True
        self.loop.no_tick(self._tick)
        os.write(self._trusted_fd, b"\0")
        answer = proof(self._token, CALLED, self._nonce, theirs, True)
        self.connection.send({"type": "welcome", "proof": answer})
        self.connection.send_raw(GREETING)
        self.connection.send(hello())

    def _tick(self) -> None:
        self._ticks -= 1
        if self._ticks <= 0:
            self.connection.close()
            self.end_ranks("it did not show that it holds the secret")


@dataclass
class _Call:
    """A process that serves a caller.

    Attributes:
        pid: Its number.
        address: The caller's.
        trusted_fd: Has a byte once the caller is known.
        dismissed: Whether it has been told to end.
    """

    pid: int
    address: str
    trusted_fd: int
    dismissed: bool = False

    @property
    def trusted(self) -> bool:
        """Whether the caller has shown that it holds the secret."""
        return bool(select.select([self.trusted_fd], [], [], 0)[0])


class _Reception:
    """Gives each caller a process of its own.

    Args:
        listener: Where they come.
        token: The secret.
    """

    def __init__(self, listener: socket.socket, token: bytes) -> None:
        self._listener = listener
        self._token = token
        self._calls: list[_Call] = []
        self._told = 0
        self._wake_fd, self._wake_write = os.pipe()

    def serve(self) -> int:
        """Until a signal asks to end; returns the exit code."""
        for fd in (self._wake_fd, self._wake_write):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        for number in (*heard_signals(), signal.SIGCHLD):
            signal.signal(number, lambda _number, _frame: None)
        while True:
            fds = [self._listener.fileno(), self._wake_fd]
            readable, _, _ = select.select(fds, [], [])
            if self._wake_fd in readable:
                asked = set(os.read(self._wake_fd, 4096)) - {signal.SIGCHLD}
                self._reap()
                for warning in asked.intersection(RANKS_SIGNALS):
                    self._signal_calls(warning)
                asked.difference_update(RANKS_SIGNALS)
                if asked:
                    return self._end(min(asked))
            if self._listener.fileno() in readable:
                self._accept()

    def _accept(self) -> None:
        try:
            peer, address = self._listener.accept()
        except OSError:
            return
        self._make_room()
        # A signal that comes before the other process is ready waits.
        signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED_SIGNALS)
        ends: tuple[int, ...] = ()
        try:
            ends = trusted_read, trusted_write = os.pipe()
            pid = os.fork()
        except OSError as error:  # Too many of something: the caller tries again.
            signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED_SIGNALS)
            for end in ends:
                os.close(end)
            peer.close()
            say(f"a call of {address[0]} cannot be taken: {error}")
            return
        if pid == 0:
            os.close(trusted_read)
            self._answer(peer, trusted_write)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED_SIGNALS)
        os.close(trusted_write)
        peer.close()
        self._calls.append(_Call(pid, address[0], trusted_read))

    def _make_room(self) -> None:
        there = (call for call in self._calls if not call.dismissed)
        unknown = [call for call in there if not call.trusted]
        if len(unknown) >= _MAX_CANDIDATES:
            unknown[0].dismissed = True
            os.kill(unknown[0].pid, signal.SIGTERM)

    def _answer(self, peer: socket.socket, trusted_fd: int) -> None:
        """In a process of its own."""
        code = 1
        try:
            self._listener.close()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for call in self._calls:
                os.close(call.trusted_fd)
            code = run_guarded(
                lambda front_fd, directory: CalledAgent(
                    peer, self._token, trusted_fd, front_fd, directory
                ).run_called(),
                what="agent",
            )
        finally:
            os._exit(code)

    def _reap(self) -> None:
        # All: as a container's first process this one gets what others leave.
        while (ended := reap()) is not None:
            call = next((call for call in self._calls if call.pid == ended.pid), None)
            if call is None:
                continue
            self._calls.remove(call)
            os.close(call.trusted_fd)
            untrusted = ended.returncode == _UNTRUSTED
            if untrusted and self._told < _MAX_UNTRUSTED_TOLD:
                self._told += 1
                say(f"dropped a connection from {call.address}: it has not the secret")

    def _signal_calls(self, number: int) -> None:
        for call in self._calls:
            os.kill(call.pid, number)

    def _end(self, number: int) -> int:
        """Agents end their ranks, and are waited for."""
        self._listener.close()
        self._signal_calls(number)
        for call in self._calls:
            os.waitpid(call.pid, 0)
        return 128 + number


def main(arguments: Sequence[str] | None = None) -> int:
    """Waits for calls; returns the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        token = read_token(options.secret_file, "--secret-file")
        host, port = split_address(options.listen)
    except ConfigError as error:
        parser.error(str(error))
    except ValueError:
        parser.error(f"--listen must be HOST:PORT, not {options.listen}")
    problem = build_problem()
    if problem is not None:
        say(problem)
        return 1
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family)
    except OSError as error:
        parser.error(f"--listen {options.listen}: {error.strerror}")
    say(f"an agent waits at {options.listen}")
    return serve_calls(listener, token)


def serve_calls(listener: socket.socket, token: bytes) -> int:
    """Gives launchers that hold the secret their agents, until a signal asks to end.

    Returns:
        The exit code that goes with that signal.
    """
    listener.setblocking(False)
    return _Reception(listener, token).serve()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ring_keras.launch.listening_agent",
        description="Waits for `ringrun -H HOST,... --agent-port PORT` of another "
        "host, and starts, watches and ends its ranks here, until SIGTERM or Ctrl-C.",
    )
    parser.add_argument(
        "--listen",
        required=True,
        metavar="HOST:PORT",
        help="an address of this host that ringrun's host reaches, and a free port",
    )
    parser.add_argument(
        "--secret-file",
        required=True,
        metavar="FILE",
        help="64 hexadecimal digits: (umask 077; openssl rand -hex 32 > FILE)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
