"""A rank that runs a function in a process of its own, below an engine's worker."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from ring_keras.engines.outcomes import Outcome
from ring_keras.engines.rank_start import RankStart
from ring_keras.launch.places import Place
from ring_keras.launch.workers import how_ended, signal_group
from ring_keras.schedulers.store_card import StoreCard

__all__ = ["FunctionProcess"]

_EXEC_RANK = str(Path(__file__).parent.with_name("launch") / "exec_rank.py")
_SCRIPT = str(Path(__file__).with_name("function_rank.py"))
_LOOK_INTERVAL_S = 0.5
# For leaving the job, and for what a program does at its end.
_END_S = 30.0


class FunctionProcess:
    """Starts it. It is killed with the thread that made it, and by `with`'s end.

    Args:
        env: Variables on top of this process's own.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        own, other = socket.socketpair()
        with other:
            arguments = [sys.executable, "-I", "-S", _EXEC_RANK, str(os.getpid()), ""]
            arguments += [sys.executable, "-I", _SCRIPT, str(other.fileno())]
            self._process = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **env},
                pass_fds=[other.fileno()],
                # What it has started is killed with it.
                start_new_session=True,
            )
        # Tells that it has ended, and leaves its number to it until it is reaped.
        self._pidfd = os.pidfd_open(self._process.pid)
        self._connection = Connection(own.detach())
        self._where = f"host {socket.gethostname()}, pid {self._process.pid}"
        self._send("path", sys.path)

    def __enter__(self) -> FunctionProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()
        signal_group(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._pidfd)

    def start_store(
        self, place: Place, starter: str, reach: str
    ) -> StoreCard | Outcome:
        """Starts the job's store there, as `start_rank_store` does.

        Call it first. If it fails, that is the rank's outcome.
        """
        self._send("store", place, starter, reach)
        answer = self._receive(lambda: None)
        return answer if isinstance(answer, StoreCard) else self._outcome_of(answer)

    def load(self, call: bytes, serializer: str, parts: Sequence[object] = ()) -> None:
        """Has it load what it is to call, which may take as long as TensorFlow does.

        Args:
            call: A function, pickled.
            serializer: The module whose `dumps` pickles what that returns.
            parts: The function's arguments.
        """
        self._send("load", call, serializer, parts)

    def run(self, start: RankStart, look: Callable[[], None]) -> Outcome:
        """Calls the function as that rank, and waits.

        Args:
            start: Which rank it is.
            look: Called twice a second meanwhile; what it raises is raised here.
        """
        self._send("run", start)
        outcome = self._outcome_of(self._receive(look))
        wait([self._pidfd], _END_S)  # It leaves the job at its end.
        return outcome

    def _send(self, *message: Any) -> None:
        # If it has ended, what it said last is still to be read.
        with contextlib.suppress(OSError):
            self._connection.send(message)

    def _receive(self, look: Callable[[], None]) -> Any:
        """What it says next; None once it has ended without a word."""
        try:
            while not self._connection.poll(_LOOK_INTERVAL_S):
                look()
            return self._connection.recv()
        except (EOFError, OSError):
            return None

    def _outcome_of(self, answer: Any) -> Outcome:
        if answer is None:
            wait([self._pidfd])
            ended = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOWAIT)
            assert ended is not None
            by_signal = ended.si_code != os.CLD_EXITED
            status = -ended.si_status if by_signal else ended.si_status
            answer = {"failure": how_ended(status)}
        return Outcome(where=self._where, **answer)
