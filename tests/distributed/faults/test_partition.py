"""Two ranks that do not reach each other any more, though all are alive."""

from __future__ import annotations

import functools
import subprocess
import threading
import time
from typing import Any

import numpy as np
import pytest
from support.engine_only import join
from support.hosts import run_on
from support.network import Network

from ring_keras import _native


def cut(commands: list[list[str]]) -> None:
    for command in commands:
        subprocess.run(command, check=True, timeout=20)


def only_wait(commands: list[list[str]]) -> None:
    """Rank 1 has sent all it can, and waits for rank 2, when the link goes."""
    rank, _ = join()
    _native.barrier("together")
    if rank == 2:
        # If rank 1 has not entered by now it has something to send: no harm.
        time.sleep(0.5)
        cut(commands)
    while True:
        _native.barrier("apart")


def move_data(commands: list[list[str]]) -> None:
    """The link goes in the middle of an allreduce."""
    rank, _ = join()
    tensor = np.ones(2_000_000, np.float32)
    _native.allreduce(tensor, "sum", "big")
    if rank == 2:
        threading.Timer(0.3, cut, (commands,)).start()
    while True:
        _native.allreduce(tensor, "sum", "big")


@pytest.mark.parametrize(
    "worker", [pytest.param(only_wait, marks=pytest.mark.slow), move_data]
)
def test_a_partition_is_found_and_both_ends_are_named(
    make_hosts: Any, worker: Any
) -> None:
    network = make_hosts(Network(3))
    commands = network.cutting(1, 2)
    outcomes = run_on(
        network,
        functools.partial(worker, commands),
        [0, 1, 2],
        check=False,
        timeout_s=60,
    )
    for outcome in outcomes:
        assert outcome.message.startswith("PeerLostError"), outcome.describe()
        for rank in (1, 2):
            pid, address = outcomes[rank].pid, network.addresses[rank]
            end = f"rank {rank} (host host{rank}, pid {pid}) at {address}:"
            assert end in outcome.message, outcome.describe()
        assert "has not answered for 7 s" in outcome.message
    assert len({outcome.message for outcome in outcomes}) == 1
