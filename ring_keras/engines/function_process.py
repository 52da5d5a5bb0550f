"""A rank that runs a function in a process of its own, below an engine's worker."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ring_keras.engines.outcomes import Outcome
from ring_keras.engines.rank_start import RankStart
from ring_keras.launch.places import Place
from ring_keras.launch.workers import how_ended
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
                # Signals to this process's group are not for ranks.
                start_new_session=True,
            )
        self._connection = Connection(own.detach())
        self._where = f"host {socket.gethostname()}"
        self._send("path", sys.path)

    def __enter__(self) -> FunctionProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()
        # Its guard kills all that is left. Has no effect once that has been reaped.
        self._process.terminate()
        self._process.wait()

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
        # It leaves the job at its end.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        return outcome

    def _send(self, *message: Any) -> None:
        # If it has ended, what it said last is still to be read.
        with contextlib.suppress(OSError):
            self._connection.send(message)

    def _receive(self, look: Callable[[], None]) -> Any:
        """What it says next; None once it has ended without a word."""
        try:
            while True:
                while not self._connection.poll(_LOOK_INTERVAL_S):
                    look()
                said = self._connection.recv()
                if not isinstance(said, int):
                    return said
                self._where += f", pid {said}"  # The first that it says.
        except (EOFError, OSError):
            return None

    def _outcome_of(self, answer: Any) -> Outcome:
        if answer is None:
            answer = {"failure": how_ended(self._process.wait())}
        return Outcome(where=self._where, **answer)
