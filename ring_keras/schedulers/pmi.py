"""The key-value space of PMI-1, through which ranks of Hydra's learn of each other.

Hydra starts the ranks of MPICH and of Intel MPI, and answers each on a descriptor
that the rank inherits: lines of `key=value`, of which the first is a command. What
one rank has put there, the others can get after a barrier.
"""

from __future__ import annotations

import os
import sys

from ring_keras import _native
from ring_keras.config import ConfigError
from ring_keras.schedulers.waiting import is_readable

__all__ = ["Pmi"]

_MAX_LINE = 8192


class Pmi:
    """One rank's talk with Hydra; a context manager.

    Args:
        descriptor: Where Hydra answers.
        starter: Its name, for messages.
        deadline: Of everything, on the monotonic clock.
    """

    def __init__(self, descriptor: int, starter: str, deadline: float) -> None:
        self._descriptor = descriptor
        self._starter = starter
        self._deadline = deadline
        self._received = b""
        # If MPI is running in this process, the talk is its own, to begin and to end.
        self._is_ours = not _mpi_is_running()

    def __enter__(self) -> Pmi:
        if self._is_ours:
            self._ask("init pmi_version=1 pmi_subversion=1", "response_to_init")
        self._space = self._ask("get_my_kvsname", "my_kvsname")["kvsname"]
        return self

    def __exit__(self, exception_type: type[BaseException] | None, *_: object) -> None:
        # Hydra takes the end of a process that has not said so for a failure, and
        # kills the others: after a failure it is one, and they would wait.
        if self._is_ours and exception_type is None:
            self._ask("finalize", "finalize_ack")

    def put(self, key: str, value: str) -> None:
        """Lets the others get `value`, without spaces, after the next barrier."""
        space = self._space
        self._ask(f"put kvsname={space} key={key} value={value}", "put_result")

    def get(self, key: str) -> str:
        """What a rank has put before the last barrier."""
        answer = self._ask(f"get kvsname={self._space} key={key}", "get_result")
        return answer["value"]

    def barrier(self) -> None:
        """Waits for every rank."""
        self._ask("barrier_in", "barrier_out")

    def _ask(self, request: str, expected: str) -> dict[str, str]:
        line = f"cmd={request}\n".encode("ascii")
        try:
            while line:
                line = line[os.write(self._descriptor, line) :]
            answer = self._read_line()
        except OSError as error:
            raise self._failure(request, f"{error.strerror}") from error
        words = (word.partition("=") for word in answer.split())
        values = {name: value for name, _, value in words}
        if values.get("cmd") != expected or values.get("rc", "0") != "0":
            # The answer to `get` holds the secret.
            got = f"cmd={values.get('cmd')} rc={values.get('rc')}"
            raise self._failure(request, f"expected cmd={expected} rc=0, got {got}")
        return values

    def _read_line(self) -> str:
        while b"\n" not in self._received:
            if not is_readable(self._descriptor, self._deadline):
                raise TimeoutError(0, "no answer in time: not every rank called init()")
            piece = os.read(self._descriptor, _MAX_LINE)
            if not piece:
                raise ConnectionError(0, "it has closed the connection")
            self._received += piece
            if len(self._received) > _MAX_LINE:
                raise ConnectionError(0, "its answer has no end")
        line, _, self._received = self._received.partition(b"\n")
        return line.decode("ascii", errors="replace")

    def _failure(self, request: str, what: str) -> ConfigError:
        command = request.partition(" ")[0]
        return ConfigError(
            "[RK124] "
            f"{self._starter} started this process but does not say where the others "
            f"are: `{command}` on descriptor {self._descriptor} (PMI_FD): {what}. Only "
            "one process of a rank can ask, once, and MPI must not have ended in it. "
            "ringrun needs none of this; RING_KERAS_SIZE=1 runs the script alone."
        )


def _mpi_is_running() -> bool:
    if _native.mpi_is_running():
        return True
    mpi = getattr(sys.modules.get("mpi4py.MPI"), "Is_initialized", None)
    return mpi is not None and bool(mpi())
