"""TensorFlow's MultiWorkerMirroredStrategy, in our own environment."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Mapping, Sequence

from benchmarks.peers.places import OWN_PYTHON, each_rank, python_ranks
from benchmarks.program import Job, Program

__all__ = ["MWMS"]


def _start(job: Job) -> list[tuple[Sequence[str], Mapping[str, str]]]:
    workers = [f"127.0.0.1:{port}" for port in _free_ports(job.size)]
    ranks = each_rank(job, python_ranks(OWN_PYTHON, "mwms", job))
    return [
        (command, {**variables, "TF_CONFIG": _configuration(workers, rank)})
        for rank, (command, variables) in enumerate(ranks)
    ]


def _configuration(workers: Sequence[str], rank: int) -> str:
    task = {"type": "worker", "index": rank}
    return json.dumps({"cluster": {"worker": workers}, "task": task})


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


MWMS = Program("MultiWorkerMirroredStrategy", [OWN_PYTHON], _start)
