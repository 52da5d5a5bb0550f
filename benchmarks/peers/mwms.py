"""TensorFlow's MultiWorkerMirroredStrategy, with Keras 3 and with Keras 2."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.peers.places import OWN_PYTHON, PEERS_DIR, each_rank, python_ranks
from benchmarks.program import Job, Program

__all__ = ["MWMS", "MWMS_KERAS_2"]


def _program(name: str, python: Path, variables: Mapping[str, str]) -> Program:
    def start(job: Job) -> list[tuple[Sequence[str], Mapping[str, str]]]:
        workers = [f"127.0.0.1:{port}" for port in _free_ports(job.size)]
        ranks = each_rank(job, python_ranks(python, "mwms", job), variables)
        return [
            (command, {**added, "TF_CONFIG": _configuration(workers, rank)})
            for rank, (command, added) in enumerate(ranks)
        ]

    return Program(name, [python], start)


def _configuration(workers: Sequence[str], rank: int) -> str:
    task = {"type": "worker", "index": rank}
    return json.dumps({"cluster": {"worker": workers}, "task": task})


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


MWMS = _program("MultiWorkerMirroredStrategy", OWN_PYTHON, {})
# The only Keras whose `fit` takes the strategy.
MWMS_KERAS_2 = _program(
    "MultiWorkerMirroredStrategy with tf_keras",
    PEERS_DIR / "tf_keras" / "bin" / "python",
    {"TF_USE_LEGACY_KERAS": "1"},
)
