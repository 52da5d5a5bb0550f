"""A rank that runs a function in a process of its own, below an engine's worker."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
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
            # Python's own variables hold for it, such as the job's PYTHONHASHSEED.
            arguments += [sys.executable, _SCRIPT, str(other.fileno())]
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
        self, place: Place, starter: str, reach: str, look: Callable[[], None]
    ) -> StoreCard | Outcome:
        """Starts the job's store there, as `start_rank_store` does. `look`: see `run`.

        Call it first. If it fails, that is the rank's outcome.
        """
        self._send("store", place, starter, reach)
        answer = self._receive(look)
        if isinstance(answer, StoreCard):
            return answer
        return self._outcome_of(answer, look)

    def load(self, call: bytes, parts: bytes, serializer: str) -> None:
        """Has it load what it is to call, which may take as long as TensorFlow does.

        Args:
            call: A function, pickled.
            parts: The sequence of its arguments, pickled.
            serializer: The module whose `dumps` pickles what that returns.
        """
        self._send("load", call, parts, serializer)

    def run(self, start: RankStart, look: Callable[[], None]) -> Outcome:
        """Calls the function as that rank, and waits.

        Args:
            start: Which rank it is.
            look: Called twice a second meanwhile; what it raises is raised here.
        """
        self._send("run", start)
        outcome = self._outcome_of(self._receive(look), look)
        self._await_end(look)  # It leaves the job at its end.
        return outcome

    def _send(self, *message: Any) -> None:
        # If it has ended, what it said last is still to be read.
        with contextlib.suppress(OSError):
            self._connection.send(message)

    def _receive(self, look: Callable[[], None]) -> Any:
        """What it says next; None once it has ended without a word."""
        while True:
            while not self._connection.poll(_LOOK_INTERVAL_S):
                look()
                # What it has forked may still hold its end of the line.
                if self._process.poll() is not None and not self._connection.poll():
                    return None
            try:
                said = self._connection.recv()
            except (EOFError, OSError):
                return None
            if not isinstance(said, int):
                return said
            self._where += f", pid {said}"  # The first that it says.

    def _await_end(self, look: Callable[[], None]) -> int | None:
        """Its return code; None if it does not end."""
        deadline = time.monotonic() + _END_S
        while self._process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_LOOK_INTERVAL_S)
            look()
        return self._process.poll()

    def _outcome_of(self, answer: Outcome | None, look: Callable[[], None]) -> Outcome:
        if answer is None:
            code = self._await_end(look)
            how = "closed its line to its worker" if code is None else how_ended(code)
            answer = Outcome(failure=how)
        return dataclasses.replace(answer, where=self._where)
