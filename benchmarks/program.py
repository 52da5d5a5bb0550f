"""Programs to measure: a package's ranks, started and asked by the benchmark."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

__all__ = [
    "Job",
    "OperationError",
    "Program",
    "ProgramError",
    "Ranks",
    "UnsupportedError",
]

_START_TIMEOUT_S = 120
_END_TIMEOUT_S = 10


class ProgramError(Exception):
    """A program could not be started, failed or took too long."""


class OperationError(Exception):
    """An operation failed, but the ranks still answer."""


class UnsupportedError(Exception):
    """A program has no such operation."""


@dataclass(frozen=True)
class Job:
    """What a program needs to know to start its ranks.

    Attributes:
        size: Number of ranks.
        cores: The cores they may have; rank r gets the r-th, and so round again.
            None: the ranks are free to move.
        directory: For the files of this job alone.
    """

    size: int
    cores: Sequence[int] | None
    directory: Path

    @property
    def socket_path(self) -> str:
        """Where ranks find the benchmark."""
        return str(self.directory / "benchmark.socket")

    def rank_arguments(self) -> list[str]:
        """What every rank is told, after its program's name."""
        cores = "any" if self.cores is None else ",".join(map(str, self.cores))
        return [self.socket_path, cores]


@dataclass(frozen=True)
class Program:
    """A package's ranks, as one or more commands.

    Attributes:
        name: For messages.
        requires: Files without which it cannot run.
        start: Makes the commands, each with variables added to the environment.
        pause: Whether to stop its ranks while others are measured, because they
            work even if nothing is asked of them.
        pin: Whether each rank has a core of its own. Not where that makes it
            slower, because its threads wait for each other.
    """

    name: str
    requires: Sequence[Path]
    start: Callable[[Job], Sequence[tuple[Sequence[str], Mapping[str, str]]]]
    pause: bool = False
    pin: bool = True

    def missing(self) -> list[Path]:
        """Of the files that it requires, those that are not there."""
        return [path for path in self.requires if not path.exists()]


@dataclass
class Ranks:
    """The running ranks of a program; a context manager.

    Attributes:
        version: What rank 0 said it is.
    """

    program: Program
    size: int
    cores: Sequence[int]
    version: str = ""
    _connections: dict[int, socket.socket] = field(default_factory=dict)
    _pids: list[int] = field(default_factory=list)
    _processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _resources: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _log_path: Path = Path(os.devnull)

    def __enter__(self) -> Ranks:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        self._signal_if_paused(signal.SIGSTOP)
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        self.close(_END_TIMEOUT_S if kind is None else 0)

    def ask(
        self, line: str, timeout_s: float, *, alone: bool = False
    ) -> list[list[float]]:
        """Asks all ranks the same, or rank 0 alone; returns each one's samples.

        Raises:
            UnsupportedError: If the program has no such operation.
            OperationError: If it failed on some rank.
            ProgramError: If a rank ended or took too long. The program is of no
                use any more then.
        """
        self._signal_if_paused(signal.SIGCONT)
        asked = {0: self._connections[0]} if alone else self._connections
        for rank, connection in asked.items():
            try:
                connection.sendall(line.encode() + b"\n")
            except OSError as error:
                raise self._lost(rank, line, error) from None
        answers = self._answers(asked, time.monotonic() + timeout_s, line)
        self._signal_if_paused(signal.SIGSTOP)
        if "unsupported" in answers.values():
            raise UnsupportedError
        for rank, text in sorted(answers.items()):
            if not text.startswith("ok"):
                raise OperationError(
                    f"{self.program.name}: rank {rank}: '{line}': {text}"
                )
        return [
            [float(word) for word in text.split()[1:]]
            for _, text in sorted(answers.items())
        ]

    def close(self, patience_s: float = 0) -> None:
        """Ends the ranks: asks them, and kills those that have not left in time."""
        self._signal_if_paused(signal.SIGCONT)
        for connection in self._connections.values():
            connection.close()
        deadline = time.monotonic() + patience_s
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._connections.clear()
        self._pids.clear()
        self._processes.clear()
        self._resources.close()

    def _start(self) -> None:
        directory = Path(
            self._resources.enter_context(tempfile.TemporaryDirectory(prefix="bench-"))
        )
        job = Job(self.size, self.cores if self.program.pin else None, directory)
        listener = self._resources.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(job.socket_path)
        listener.listen(self.size)
        self._log_path = directory / "log"
        log = self._resources.enter_context(self._log_path.open("wb"))
        # It is the benchmark's; ring_keras warns of variables that it does not know.
        inherited = {k: v for k, v in os.environ.items() if k != "RING_KERAS_PEERS"}
        for command, variables in self.program.start(job):
            self._processes.append(
                subprocess.Popen(
                    command,
                    env={**inherited, **variables},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )
        deadline = time.monotonic() + _START_TIMEOUT_S
        listener.settimeout(0.2)
        while len(self._connections) < self.size:
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                ended = [p for p in self._processes if p.poll() not in (None, 0)]
                if ended or time.monotonic() > deadline:
                    raise ProgramError(
                        f"{self.program.name}: {len(self._connections)} of {self.size} "
                        f"ranks came up. The end of what they printed:\n"
                        + _tail(self._log_path)
                    ) from None
                continue
            connection.settimeout(_START_TIMEOUT_S)
            rank, pid, version = _line(connection).split(maxsplit=2)
            self._connections[int(rank)] = connection
            self._pids.append(int(pid))
            if rank == "0":
                self.version = version

    def _answers(
        self, connections: Mapping[int, socket.socket], deadline: float, line: str
    ) -> dict[int, str]:
        answers = dict.fromkeys(connections, b"")
        with selectors.DefaultSelector() as selector:
            for rank, connection in connections.items():
                selector.register(connection, selectors.EVENT_READ, rank)
            while selector.get_map():
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                if not ready:
                    raise ProgramError(f"{self.program.name}: '{line}' took too long")
                for key, _ in ready:
                    try:
                        piece = connections[key.data].recv(1 << 16)
                    except OSError as error:
                        raise self._lost(key.data, line, error) from None
                    if not piece:
                        raise self._lost(key.data, line)
                    answers[key.data] += piece
                    if piece.endswith(b"\n"):
                        selector.unregister(key.fileobj)
        return {rank: text.decode().strip() for rank, text in answers.items()}

    def _lost(self, rank: int, line: str, error: OSError | None = None) -> ProgramError:
        why = f" ({error})" if error else ""
        return ProgramError(
            f"{self.program.name}: rank {rank} ended in '{line}'{why}. The end of "
            f"what the ranks printed:\n{_tail(self._log_path)}"
        )

    def _signal_if_paused(self, number: signal.Signals) -> None:
        if self.program.pause:
            for pid in self._pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)


def _line(connection: socket.socket) -> str:
    text = b""
    while not text.endswith(b"\n"):
        piece = connection.recv(4096)
        if not piece:
            raise ProgramError("A rank hung up before it said what it is")
        text += piece
    return text.decode().strip()


def _tail(path: Path) -> str:
    return path.read_text(errors="replace")[-2000:]
