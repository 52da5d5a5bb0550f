"""Starts the ranks of a job on hosts that are network namespaces."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
# The network and the job are those of the tests.
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support.carried_hosts import CarriedHosts, Fate  # noqa: E402
from support.job import Job  # noqa: E402
from support.network import Hosts, Network  # noqa: E402

__all__ = ["CarriedHosts", "Fate", "Hosts", "Network", "run_on_hosts"]


def run_on_hosts(
    network: Hosts,
    hosts: int,
    per_host: int,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    timeout_s: float,
) -> None:
    """Runs Python with `arguments` on `per_host` ranks on each of `hosts` hosts.

    Raises:
        RuntimeError: If a rank fails; with what it printed.
    """
    size = hosts * per_host
    # The machine's name is the same in all of them.
    environments = [
        {**environment, "RING_KERAS_HOST_NAME": f"host{rank // per_host}"}
        for rank in range(size)
    ]
    # The store listens on the first host, like ringrun's.
    job = network.inside(
        0, lambda: Job(size, env=environments, bind_address=network.addresses[0])
    )
    ranks: list[subprocess.Popen[str]] = []
    with job:
        try:
            for rank in range(size):
                host = rank // per_host
                ranks.append(
                    subprocess.Popen(
                        network.command(host, sys.executable, *arguments),
                        env=job.environment(rank),
                        stdout=subprocess.PIPE,
                        stderr=subprocess.STDOUT,
                        text=True,
                    )
                )
            for rank, process in enumerate(ranks):
                printed, _ = process.communicate(timeout=timeout_s)
                if process.returncode != 0:
                    raise RuntimeError(
                        f"rank {rank} of {size} exited with code "
                        f"{process.returncode}:\n{printed}"
                    )
        finally:
            for process in ranks:
                process.kill()
                process.wait()
