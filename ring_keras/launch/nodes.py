"""One job that is started by the same command on every host: node 0's side."""

from __future__ import annotations

import functools
import ipaddress
import socket
from dataclasses import dataclass
from typing import Any

from ring_keras._version import __version__
from ring_keras.launch.agent_crew import AgentCrew
from ring_keras.launch.agent_line import AgentLine
from ring_keras.launch.desk import CannotStartError, Desk
from ring_keras.launch.door import Door, Guest
from ring_keras.launch.elastic_options import ElasticOptions
from ring_keras.launch.frames import Message, Output, ProtocolError, field
from ring_keras.launch.local_crew import HostJob
from ring_keras.launch.places import places_of
from ring_keras.launch.secret_proof import CONNECTED, LISTENER
from ring_keras.launch.source import Hosts, Source

__all__ = ["NodeOptions", "encryption_differs", "nodes_that_come"]

_READY_TIMEOUT_S = 30.0
_NAME_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class NodeOptions:
    """This node among the job's.

    Attributes:
        count: How many nodes there are.
        rank: This one's number, from 0.
        ranks: How many ranks it has.
        host: Where node 0 listens.
        port: The same.
        token: The job's secret.
        init_timeout_s: How long the others may take to come.
        encrypt: Whether what nodes say to each other is encrypted.
        elastic: The options by which the number of ranks may change; empty: none, and
            it does not.
    """

    count: int
    rank: int
    ranks: int
    host: str
    port: int
    token: bytes
    init_timeout_s: float = 120.0
    encrypt: bool = False
    elastic: str = ""

    @property
    def rendezvous(self) -> str:
        """Where node 0 listens, for messages."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def encryption_differs(first_encrypts: bool, other: str) -> str:
    """What both nodes say; `other` is not node 0."""
    encrypting, plain = ("node 0", other) if first_encrypts else (other, "node 0")
    return (
        f"{encrypting} encrypts, and {plain} does not. Give ringrun --encrypt on every "
        "node, or on none"
    )


def _await_name(host: str, where: str, timeout_s: float, desk: Desk) -> None:
    """Waits until this host's name is known; a pod's own comes with a delay.

    Args:
        host: The name, or an address.
        where: What names it, for messages.
        timeout_s: No longer than this, nor than a minute. Then `_listen_at` fails.
        desk: The launcher's.
    """

    def is_known() -> bool:
        try:
            socket.getaddrinfo(host, None)
        except OSError:
            return False
        return True

    if is_known():
        return
    timeout_s = min(timeout_s, _NAME_TIMEOUT_S)
    desk.output.say(f"{where}: nobody knows that name yet; asking for {timeout_s:g} s")

    def ask_again() -> None:
        """Ends a turn of the loop each second."""

    desk.loop.on_tick(ask_again)
    desk.run_until(is_known, timeout_s)
    desk.loop.no_tick(ask_again)


def _listen_at(host: str, port: int, where: str) -> socket.socket:
    """A socket that listens there, and does not block.

    Args:
        host: An address of this host, or its name.
        port: A free port.
        where: What names both, for messages.

    Raises:
        CannotStartError: If others could not come there.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, _, _, _, (address, *_) = found[0]
        meant = ipaddress.ip_address(address)
        if meant.is_unspecified:
            raise CannotStartError(f"{where}: give one address of node 0's host")
        if meant.is_loopback and host not in ("localhost", str(meant)):
            raise CannotStartError(
                f"{where}: on this host that is {meant}, which no other reaches; give "
                "its address"
            )
        listener = socket.create_server((str(address), port), family=family)
    except OSError as error:
        raise CannotStartError(
            f"{where}: {error.strerror}. Node 0 listens there: it must be an address "
            "of its host, and a free port"
        ) from None
    listener.setblocking(False)
    return listener


def nodes_that_come(options: NodeOptions, job: HostJob) -> Source:
    """This host, which is node 0, and those of the other nodes, which call here."""

    def gather(desk: Desk) -> Hosts:
        reception = _Reception(options, desk)
        others = reception.await_all()
        own = desk.local_crew(options.ranks, job)
        own.title = f"node 0 ({own.title})"
        own.places, *theirs = places_of([options.ranks, *(c.slots for c in others)])
        for crew, places in zip(others, theirs, strict=True):
            crew.prepare(places)
        desk.run_until(
            lambda: all(crew.reached is not None or crew.gone for crew in others),
            _READY_TIMEOUT_S,
        )
        for crew in others:
            if crew.reached is None:
                reason = crew.gone or f"it was not ready in {_READY_TIMEOUT_S:g} s"
                raise CannotStartError(f"{crew.title}: {reason}")
        crews = {crew.title: crew for crew in (own, *others)}
        if desk.options.elastic is not None:
            _check_size(
                desk.options.elastic, sum(crew.slots for crew in crews.values())
            )
        return Hosts(crews, reception.address)

    return gather


def _check_size(elastic: ElasticOptions, size: int) -> None:
    """Raises CannotStartError if the nodes have not the ranks that were asked for."""
    least, most = elastic.min_size, elastic.max_size
    if least > size:
        raise CannotStartError(
            f"--min-np must be from 1 to {size}, the ranks of all nodes, not {least}"
        )
    if most is not None and most < size:
        raise CannotStartError(
            f"--max-np must be at least {size}, the ranks of all nodes, not {most}"
        )


class NodeCrew(AgentCrew):
    """The ranks of another node: a ringrun of its own, which shows what they print.

    Args:
        line: To the node, which has said who it is.
        rank: Its number.
        slots: How many ranks it has.
        desk: The launcher's.
    """

    def __init__(self, line: AgentLine, rank: int, slots: int, desk: Desk) -> None:
        super().__init__(line, slots, desk)
        self.title = f"node {rank} (host {line.name})"
        self._finished = False

    @property
    def done(self) -> bool:
        """Whether nothing is left of its ranks, or nobody could say."""
        return self._finished or self.gone is not None

    @property
    def parted(self) -> bool:
        """It closes the line when it has heard how the job ended."""
        return self.gone is not None

    def secrets(self) -> dict[str, str]:
        """It has the job's secret."""
        return {}

    def expect_output(self, rank: int) -> None:
        """It does not come here."""

    def end_output(self, rank: int) -> None:
        """Nobody waits for it."""

    def take_output(self, output: Output) -> None:
        """It is not for here."""
        raise ProtocolError("it shall show what its ranks print itself")

    def take(self, message: Message) -> None:
        """Takes what the node says."""
        if isinstance(message, dict) and message["type"] == "finished":
            self._finished = True
        elif isinstance(message, dict) and message["type"] == "interrupt":
            self._desk.output.say(f"{self.title} was asked to end the job")
            self._desk.interrupt(field(message, "number", int))
        else:
            super().take(message)

    def dismiss(self, exit_code: int, message: str | None) -> None:
        """Tells how the job ended."""
        verdict = {"type": "verdict", "exit_code": exit_code, "message": message}
        if self.gone is None:
            self.line.send(verdict)


class _Reception:
    """Listens for nodes, and asks who they are.

    Args:
        options: Of node 0.
        desk: The launcher's.

    Raises:
        CannotStartError: If it cannot listen there.
    """

    def __init__(self, options: NodeOptions, desk: Desk) -> None:
        self._options = options
        self._desk = desk
        self._crews: dict[int, NodeCrew] = {}
        self._problem: str | None = None  # Why there can be no job.
        self._full = False
        where = f"--rendezvous {options.rendezvous}"
        _await_name(options.host, where, options.init_timeout_s, desk)
        listener = _listen_at(options.host, options.port, where)
        self.address: str = listener.getsockname()[0]
        """On which it listens, numeric."""
        door = Door(
            listener,
            options.token,
            CONNECTED,
            {"encrypt": options.encrypt},
            self._admit,
            desk.output.say,
        )
        desk.loop.on_readable(door.fileno(), door.serve)
        desk.loop.on_tick(door.tick)

    def await_all(self) -> list[NodeCrew]:
        """Until all nodes have come; theirs, in the order of their numbers.

        Raises:
            CannotStartError: If one is missing, or does not fit.
        """
        options = self._options
        others = range(1, options.count)

        def missing() -> list[int]:
            return [rank for rank in others if self._there(rank) is None]

        in_time = self._desk.run_until(
            lambda: self._problem is not None or not missing(), options.init_timeout_s
        )
        if self._problem is not None:
            raise CannotStartError(self._problem)
        if not in_time:
            raise CannotStartError(
                f"of {options.count} nodes, {_numbers(missing())} did not come to "
                f"{options.rendezvous} within {options.init_timeout_s:g} s"
            )
        self._full = True
        return [self._crews[rank] for rank in others]

    def _there(self, rank: int) -> NodeCrew | None:
        crew = self._crews.get(rank)
        return None if crew is None or crew.gone is not None else crew

    def _admit(self, guest: Guest) -> None:
        """Somebody holds the secret, and will say which node they are."""
        if guest.proof.encrypts != self._options.encrypt:
            guest.peer.close()
            other = f"the node at {guest.address}"
            self._note_problem(encryption_differs(self._options.encrypt, other))
            return
        line = AgentLine(guest.address)
        line.on_hello = functools.partial(self._welcome, line)
        connection = guest.welcome(LISTENER, self._desk.loop, line.take, line.lose)
        line.open(connection, self._desk.options.all_silent_s)
        connection.take(guest.came)

    def _note_problem(self, problem: str) -> None:
        if not self._full:
            self._problem = problem

    def _welcome(self, line: AgentLine, hello: dict[str, Any]) -> None:
        """Takes a node, or tells it why not."""
        rank, line.name = field(hello, "node_rank", int), field(hello, "host_name", str)
        problem = self._problem_of(hello, rank, line.name)
        if problem is not None:
            self._note_problem(problem)
            line.send({"type": "verdict", "exit_code": 1, "message": problem})
            return
        crew = NodeCrew(line, rank, field(hello, "ranks", int), self._desk)
        if rank in self._crews:  # It was started again.
            self._desk.crews.remove(self._crews[rank])
        self._crews[rank] = crew
        self._desk.crews.append(crew)

    def _problem_of(self, hello: dict[str, Any], rank: int, name: str) -> str | None:
        who = f"node {rank} (host {name})"
        there = self._crews.get(rank) if self._full else self._there(rank)
        if there is not None and there.gone is not None:
            return f"{there.title} was lost, and a job that runs takes none back"
        if there is not None or rank == 0:
            other = socket.gethostname() if there is None else there.name
            return (
                f"two nodes have --node-rank {rank}: on hosts {other} and {name}. Give "
                "each its own"
            )
        count = field(hello, "nodes", int)
        if count != self._options.count or not 0 < rank < count:
            return (
                f"{who} was started with --nnodes {count}, and node 0 with --nnodes "
                f"{self._options.count}"
            )
        if field(hello, "ranks", int) < 1:
            return f"{who} has no ranks"
        version = field(hello, "ring_keras", str)
        if version != __version__:
            return f"{who} has ring_keras {version}, and node 0 {__version__}"
        its, own = field(hello, "elastic", str), self._options.elastic
        if its != own:
            return (
                f"{who} was started with {its or 'no --min-np'}, and node 0 with "
                f"{own or 'none'}. Give the same on every node"
            )
        return None


def _numbers(ranks: list[int]) -> str:
    return f"{'node' if len(ranks) == 1 else 'nodes'} {', '.join(map(str, ranks))}"
