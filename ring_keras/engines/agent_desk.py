"""Where tasks of an elastic job say that ringrun's agent waits in them."""

from __future__ import annotations

import contextlib
import functools
import secrets
import select
import socket
import socketserver
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ring_keras.network.exchange import ask, receive_request, send_answer

__all__ = ["AgentDesk", "DeskCard", "JobIsOverError", "Visit"]

# For a proof of the secret.
_PROOF_S = 10.0
# So many may be without one. Tasks take milliseconds for it: those who come at the same
# time wait for so long before the oldest has to go.
_MAX_UNPROVEN = 64
_ROOM_S = 1.0
_CONNECT_S = 30.0
# A host that is gone without a word is noticed after 25 s.
_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}


class JobIsOverError(Exception):
    """The desk needs no more agents."""


@dataclass(frozen=True)
class DeskCard:
    """What a task must know of the desk.

    Attributes:
        host: Its address.
        port: Its port.
        token: The secret of the job's agents.
        need: What a task lacks that does not reach it, for the message.
    """

    host: str
    port: int
    token: bytes = field(repr=False)
    need: str

    @contextlib.contextmanager
    def visited(self) -> Iterator[Visit]:
        """A connection to it.

        Raises:
            JobIsOverError: If nobody is needed any more.
            OSError: If it is not reached.
        """
        try:
            line = socket.create_connection((self.host, self.port), _CONNECT_S)
        except OSError as error:
            raise OSError(
                error.errno,
                f"run_elastic is not reached at {self.host} port {self.port}: "
                f"{error.strerror or error}. {self.need}",
            ) from None
        with line:
            _keep_alive(line)
            yield Visit(line, self.token)


class Visit:
    """A task at the desk.

    Args:
        line: Connected to it.
        token: The secret.

    Attributes:
        own_address: Of this host, as the desk's sees it.

    Raises:
        JobIsOverError: If nobody is needed any more.
    """

    def __init__(self, line: socket.socket, token: bytes) -> None:
        self._line = line
        self._token = token
        self.own_address = str(line.getsockname()[0])
        try:
            ask(line, token, {})
        except ConnectionError:
            raise JobIsOverError from None

    def say(self, partition: int, attempt: int, agent: str) -> None:
        """An agent waits at this address, for as long as this is open."""
        told = {"partition": partition, "attempt": attempt, "address": agent}
        with contextlib.suppress(ConnectionError):  # It is over.
            ask(self._line, self._token, told)
        self._line.settimeout(None)

    def is_over(self, timeout_s: float) -> bool:
        """Whether the desk has closed; waits so long for that.

        Raises:
            OSError: If the line is broken. The job may go on.
        """
        readable, _, _ = select.select([self._line], [], [], timeout_s)
        return bool(readable) and not self._line.recv(1)  # It says no more.


class AgentDesk:
    """Listens, until the end of a `with` statement.

    Args:
        host: An address of this host that tasks reach.
        token: The secret that they know.
        engine: Whose tasks they are, for messages.
        origin: What has said that address; the same.

    Attributes:
        card: For the tasks.
        losses: Which tasks ended before the job.

    Raises:
        OSError: If it cannot listen there.
    """

    def __init__(self, host: str, token: bytes, *, engine: str, origin: str) -> None:
        self.losses: list[str] = []
        self._engine = engine
        self._job = secrets.token_hex(4)
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        # The oldest first.
        self._unproven: dict[socket.socket, None] = {}
        self._is_over = False
        self._lines: set[socket.socket] = set()
        # The newest attempt of each partition, and where its agent is.
        self._agents: dict[int, tuple[int, str]] = {}
        # Partitions of which an attempt has had one.
        self._had_agents: set[int] = set()
        try:
            self._server = _Server(self, host, token)
        except OSError as error:
            raise OSError(
                error.errno,
                f"{origin} is {host}, and run_elastic cannot listen there: "
                f"{error.strerror}. Ranks come to free ports of its host, by an "
                "address of its own; behind NAT, as in a container's network, there "
                "is none",
            ) from None
        need = f"{engine}'s tasks need a way to {origin}"
        self.card = DeskCard(host, self._server.server_address[1], token, need)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def __enter__(self) -> AgentDesk:
        return self

    def __exit__(self, *_: object) -> None:
        self.dismiss()
        self._server.shutdown()
        self._server.server_close()

    def agents(self) -> dict[str, str]:
        """Host and port of each that there is, by a name that no host has."""
        with self._lock:
            return {
                f"task{partition}-{attempt}-{self._job}.invalid": address
                for partition, (attempt, address) in self._agents.items()
            }

    def has(self, partition: int) -> bool:
        """Whether an agent waits in that task."""
        with self._lock:
            return partition in self._agents

    def has_had(self, partition: int) -> bool:
        """Whether one has ever waited there."""
        with self._lock:
            return partition in self._had_agents

    def dismiss(self) -> None:
        """The job is over: tasks end, and those that come later do at once."""
        with self._lock:
            self._is_over = True
            for line in self._lines:
                with contextlib.suppress(OSError):  # It has gone by itself.
                    line.shutdown(socket.SHUT_RDWR)

    def await_room(self, line: socket.socket) -> None:
        """Somebody has come, who has proven nothing yet."""
        with self._room:
            if not self._room.wait_for(
                lambda: len(self._unproven) < _MAX_UNPROVEN, _ROOM_S
            ):
                oldest = next(iter(self._unproven))
                del self._unproven[oldest]
                with contextlib.suppress(OSError):  # It has gone by itself.
                    oldest.shutdown(socket.SHUT_RDWR)
            self._unproven[line] = None

    def give_room(self, line: socket.socket) -> None:
        """Who came with it has proven who it is, or has gone."""
        with self._room:
            if line in self._unproven:
                del self._unproven[line]
                self._room.notify()

    @contextlib.contextmanager
    def taking(self, line: socket.socket) -> Iterator[bool]:
        """Somebody has come, and stays for a while; yields whether that is welcome."""
        with self._lock:
            welcome = not self._is_over
            if welcome:
                self._lines.add(line)
        try:
            yield welcome
        finally:
            self.give_room(line)
            with self._lock:
                self._lines.discard(line)

    @contextlib.contextmanager
    def holding(self, partition: int, attempt: int, address: str) -> Iterator[None]:
        """Meanwhile there is that agent, unless a later attempt has come."""
        with self._lock:
            if self._agents.get(partition, (-1, ""))[0] < attempt:
                self._agents[partition] = attempt, address
                self._had_agents.add(partition)
        try:
            yield
        finally:
            with self._lock:
                if self._agents.get(partition) == (attempt, address):
                    del self._agents[partition]
                if not self._is_over:
                    self.losses.append(
                        f"{self._engine}'s task {partition} at {address} ended"
                    )


class _Visitor(socketserver.BaseRequestHandler):
    """A task at the desk, in a thread of its own."""

    def __init__(self, desk: AgentDesk, token: bytes, *arguments: object) -> None:
        self._desk = desk
        self._token = token
        super().__init__(*arguments)  # type: ignore[arg-type]  # socketserver's own.

    def handle(self) -> None:
        """Until it goes."""
        line = self.request
        # Whoever says something else, or goes meanwhile, is nobody.
        ends = contextlib.suppress(OSError, ValueError)
        with self._desk.taking(line) as welcome, ends:
            if not welcome:
                return
            line.settimeout(_PROOF_S)
            _, binding = receive_request(line, self._token)
            self._desk.give_room(line)
            send_answer(line, self._token, binding, "welcome")
            line.settimeout(None)
            _keep_alive(line)
            # Its agent has yet to start, in whatever time that takes.
            told, binding = receive_request(line, self._token)
            with self._desk.holding(**told):
                send_answer(line, self._token, binding, "noted")
                line.recv(1)  # Nothing comes but the end.


class _Server(socketserver.ThreadingTCPServer):
    """Has a thread for each visitor, and few for those who prove nothing."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = socket.SOMAXCONN

    def __init__(self, desk: AgentDesk, host: str, token: bytes) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._desk = desk
        super().__init__((host, 0), functools.partial(_Visitor, desk, token))

    def process_request(self, request: Any, client_address: Any) -> None:
        """Starts the thread, once there is room."""
        self._desk.await_room(request)
        super().process_request(request, client_address)


def _keep_alive(line: socket.socket) -> None:
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        line.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
