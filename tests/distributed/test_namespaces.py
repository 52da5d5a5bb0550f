"""Two hosts, as two network namespaces with a link between them."""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
from support import run_ranks

import ring_keras as ring
from ring_keras import _native

HOSTS = ("left", "right")
ADDRESSES = ("10.222.7.1", "10.222.7.2")
Result = TypeVar("Result")


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=20)


@pytest.fixture
def namespaces() -> Iterator[list[str]]:
    """Names of two namespaces that a veth pair joins; gone afterwards."""
    if os.geteuid() != 0:
        pytest.skip("making network namespaces needs root")
    names = [f"ring-{os.getpid()}-{host}" for host in HOSTS]
    try:
        for name in names:
            try:
                ip("netns", "add", name)
            except (OSError, subprocess.CalledProcessError) as error:
                pytest.skip(f"network namespaces cannot be made here: {error}")
        ip(
            *("link", "add", "veth0", "netns", names[0], "type", "veth"),
            *("peer", "name", "veth0", "netns", names[1]),
        )
        for name, address in zip(names, ADDRESSES, strict=True):
            ip("-n", name, "address", "add", f"{address}/24", "dev", "veth0")
            ip("-n", name, "link", "set", "veth0", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


def inside(namespace: str, function: Callable[[], Result]) -> Result:
    """Calls `function` on a thread of its own that has entered `namespace`."""

    def enter_and_call() -> Result:
        libc = ctypes.CDLL(None, use_errno=True)
        with Path("/run/netns", namespace).open() as handle:
            if libc.setns(handle.fileno(), 0) != 0:
                raise OSError(ctypes.get_errno(), "setns")
        return function()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(enter_and_call).result()


def work() -> dict[str, object]:
    ring.init()
    rank, size = ring.rank(), ring.size()
    count = 500_000
    total = _native.allreduce(np.full(count, rank + 1, np.float32), "sum", "big")
    gathered = _native.allgather(np.full((rank + 1, 2), rank, np.int32), "rows")
    return {
        "transports": [_native.transport_to(other) for other in range(size)],
        "places": (ring.local_rank(), ring.local_size(), ring.cross_size()),
        "total": (float(total.min()), float(total.max())),
        "rows": gathered[:, 0].tolist(),
    }


@pytest.mark.parametrize("per_host", [1, 2])
def test_ranks_on_two_hosts(namespaces: list[str], per_host: int) -> None:
    size = 2 * per_host
    hosts = [rank // per_host for rank in range(size)]
    # The job's store listens in the first host's namespace, like ringrun's.
    job = functools.partial(
        run_ranks,
        work,
        size,
        # The machine's name is the same in both, which would mean one host.
        env=[{"RING_KERAS_HOST_NAME": HOSTS[host]} for host in hosts],
        command_prefix=[["ip", "netns", "exec", namespaces[host]] for host in hosts],
        bind_address=ADDRESSES[0],
    )
    results = inside(namespaces[0], job)
    total = float(sum(range(1, size + 1)))
    rows = [rank for rank in range(size) for _ in range(rank + 1)]
    for rank, result in enumerate(results):
        expected = [
            "self" if other == rank else "shm" if hosts[other] == hosts[rank] else "tcp"
            for other in range(size)
        ]
        assert result["transports"] == expected
        assert result["places"] == (rank % per_host, per_host, 2)
        assert result["total"] == (total, total)
        assert result["rows"] == rows
