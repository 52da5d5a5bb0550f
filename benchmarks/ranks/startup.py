"""What a rank does before it trains: it imports, joins, takes a first step."""

from __future__ import annotations

import importlib.metadata
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.ranks.agent import Operation, Request, answer

__all__ = ["Steps", "fit_steps", "import_tensorflow", "serve_startup"]

# Takes steps, the first of which are not timed; returns the seconds of the others.
Steps = Callable[[int, int], list[float]]


def serve_startup(
    socket_path: str,
    rank: int,
    packages: Sequence[str],
    import_framework: Callable[[], None],
    join: Callable[[], Callable[[], Steps]],
) -> None:
    """Does each thing when it is asked to, so that all ranks begin it together.

    Args:
        socket_path: Of the benchmark.
        rank: This one.
        packages: What is measured, as it is imported; for their versions.
        import_framework: Imports what the package stands on.
        join: Imports the package and joins; returns what builds the training.
    """
    builds: list[Callable[[], Steps]] = []
    built: list[Steps] = []
    operations: dict[str, Operation] = {
        "import": lambda _: _timed(import_framework),
        "join": lambda _: _timed(lambda: builds.append(join())),
        "build": lambda _: _timed(lambda: built.append(builds[0]())),
        "first_step": lambda _: _timed(lambda: built[0](1, 0)),
        "later_steps": lambda request: built[0](1, request.number("samples")),
        "memory": _memory,
    }
    versions = [f"{name} {_version(name)}" for name in packages]
    answer(socket_path, rank, ", ".join(versions), operations)


def import_tensorflow() -> None:
    """And what its Keras imports late."""
    import tensorflow as tf

    from benchmarks.ranks.tensors import limit_threads

    limit_threads()
    importlib.import_module(tf.keras.__name__)


def fit_steps(rank: int, **how: Any) -> Steps:
    """Those of a `fit`; for `how` see `fit_loop`."""
    from benchmarks.ranks.models import fit_loop

    return fit_loop("mlp", rank, **how).run


def _version(package: str) -> str:
    """That of its distribution, which may be tensorflow or tensorflow-cpu."""
    found = importlib.metadata.packages_distributions().get(package, [package])
    return importlib.metadata.version(found[0])


def _timed(call: Callable[[], object]) -> list[float]:
    start = time.perf_counter()
    call()
    return [time.perf_counter() - start]


def _memory(_: Request) -> list[float]:
    """In bytes: the most that was resident, and what is now.

    The former counts memory that ranks share once for each, the latter in parts.
    """
    most = _kib("/proc/self/status", "VmHWM")
    return [1024 * most, 1024 * _kib("/proc/self/smaps_rollup", "Pss")]


def _kib(path: str, name: str) -> float:
    text = Path(path).read_text(encoding="ascii")
    (value,) = re.findall(rf"^{name}:\s+(\d+) kB$", text, re.MULTILINE)
    return float(value)
