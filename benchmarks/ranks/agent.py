"""A rank's side of the talk with the benchmark: one line asks, one answers.

    allreduce nbytes=4 dtype=float32 warmup=5 samples=10 inner=20
    ok 1.1e-06 1.0e-06 ...

asks for 10 samples, each the mean time of 20 calls. Other answers are
`unsupported` and `error WHAT`. All ranks get the same line at the same time.
While none comes a rank sleeps, so that it does not disturb the others'
measurements.
"""

from __future__ import annotations

import os
import socket
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Operation", "Request", "UnsupportedError", "answer", "read_shapes"]


class UnsupportedError(Exception):
    """The package has no such operation."""


@dataclass(frozen=True)
class Request:
    """What to measure."""

    operation: str
    parameters: Mapping[str, str]

    @classmethod
    def parse(cls, line: str) -> Request:
        """From the line that asks."""
        operation, *words = line.split()
        pairs = (word.partition("=") for word in words)
        return cls(operation, {key: value for key, _, value in pairs})

    def text(self, key: str, default: str = "") -> str:
        """A parameter."""
        return self.parameters.get(key, default)

    def number(self, key: str, default: int = 0) -> int:
        """A parameter that is a number."""
        return int(self.parameters.get(key, default))

    def time(self, call: Callable[[], object]) -> list[float]:
        """Seconds a call takes, as often as was asked for."""
        inner = self.number("inner", 1)
        clock = time.perf_counter
        for _ in range(self.number("warmup", 1)):
            call()
        samples = []
        for _ in range(self.number("samples", 1)):
            start = clock()
            for _ in range(inner):
                call()
            samples.append((clock() - start) / inner)
        return samples


Operation = Callable[[Request], list[float]]


def answer(
    socket_path: str, rank: int, version: str, operations: Mapping[str, Operation]
) -> None:
    """Answers requests until the benchmark hangs up."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(socket_path)
    with connection, connection.makefile("rw", buffering=1) as stream:
        stream.write(f"{rank} {os.getpid()} {version}\n")
        for line in stream:
            stream.write(_answer(Request.parse(line), operations) + "\n")


def _answer(request: Request, operations: Mapping[str, Operation]) -> str:
    operation = operations.get(request.operation)
    if operation is None:
        return "unsupported"
    try:
        samples = operation(request)
    except UnsupportedError:
        return "unsupported"
    except Exception as error:
        traceback.print_exc()
        lines = str(error).splitlines() or [""]
        # TensorFlow's have the cause among lines of stack.
        text = " ... ".join(
            line for line in lines if not line.startswith(("  ", "Det"))
        )
        return f"error {type(error).__name__}: {text[:800]}"
    return " ".join(["ok", *map(repr, samples)])


def read_shapes(name: str) -> list[tuple[int, ...]]:
    """The shapes of the tensors in data/NAME.txt."""
    path = Path(__file__).parent.parent / "data" / f"{name}.txt"
    return [
        tuple(int(length) for length in line.split("x"))
        for line in path.read_text(encoding="ascii").splitlines()
        if not line.startswith("#")
    ]
