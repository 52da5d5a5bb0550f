"""The job that is measured: its ranks, hosts, transports and versions."""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass

import numpy as np

import ring_keras
from ring_keras import _native, autotune
from ring_keras.config import Config
from ring_keras.job.gathering import gather_texts
from ring_keras.schedulers import store_options

__all__ = ["JobDescription", "describe_job", "join"]


@dataclass(frozen=True)
class JobDescription:
    """What a reader must know to compare figures.

    Attributes:
        ranks: How many.
        hosts: The name of each rank's host.
        transports: How rank 0 reaches each rank: self, shm or tcp.
        versions: By the name of the software.
        instruction_set: What the engine reduces with.
        tuning: The thresholds between algorithms that are set, in bytes.
    """

    ranks: int
    hosts: list[str]
    transports: list[str]
    versions: dict[str, str]
    instruction_set: str
    tuning: dict[str, int]

    def lines(self) -> list[str]:
        """For people."""
        ranks_of: dict[str, list[str]] = {}
        for rank, host in enumerate(self.hosts):
            ranks_of.setdefault(host, []).append(str(rank))
        reached: dict[str, list[str]] = {}
        for rank, transport in enumerate(self.transports[1:], start=1):
            reached.setdefault(transport, []).append(str(rank))
        software = ", ".join(f"{name} {text}" for name, text in self.versions.items())
        hosts = ", ".join(f"{host} ({', '.join(r)})" for host, r in ranks_of.items())
        links = ", ".join(f"{how} to {', '.join(r)}" for how, r in reached.items())
        tuning = ", ".join(f"{name}={most}" for name, most in self.tuning.items())
        lines = [
            f"{software}; reduces with {self.instruction_set}",
            f"ranks: {self.ranks}; hosts: {hosts}",
            f"transport from rank 0: {links or 'none'}",
            f"tuning: {tuning or 'nothing set'}",
        ]
        if self.ranks == 1:
            lines.append(
                "one rank alone sends nothing; for more: ringrun -np 2 ring benchmark"
            )
        return lines


def join(tensorflow: bool) -> tuple[int, int]:
    """Joins the job; returns this rank and the number of ranks."""
    if tensorflow:
        ring_keras.init()
    else:
        config = Config.from_environment()
        _native.init(**config.init_options() | store_options(config))
        if config.autotune:
            autotune.tune(config)
    rank, size, *_ = _native.topology()
    return rank, size


def describe_job(size: int) -> JobDescription:
    """Asks all ranks: a collective."""
    name = Config.from_environment().host_name or platform.node()
    versions = {
        "ring_keras": ring_keras.__version__,
        "Python": platform.python_version(),
        "NumPy": np.__version__,
    }
    if "tensorflow" in sys.modules:
        versions["TensorFlow"] = sys.modules["tensorflow"].__version__
    return JobDescription(
        ranks=size,
        hosts=gather_texts(name, "benchmark/hosts"),
        transports=[_native.transport_to(rank) for rank in range(size)],
        versions=versions,
        instruction_set=_native.instruction_set(),
        tuning={
            name: most for name, most in _native.tuning().items() if most is not None
        },
    )
