"""Several hosts, as network namespaces with links between them."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from support.engine_only import join
from support.hosts import run_on
from support.lossy_link import LossyLink
from support.network import Network

from ring_keras import _native


def work() -> dict[str, object]:
    rank, size = join()
    totals = []
    for count in (1, 1000, 16_384, 500_000):
        total = _native.allreduce(np.full(count, rank + 1, np.float32), "sum", "total")
        totals.append((float(total.min()), float(total.max())))
    gathered = _native.allgather(np.full((rank + 1, 2), rank, np.int32), "rows")
    _, _, local_rank, local_size, _, cross_size = _native.topology()
    return {
        "transports": [_native.transport_to(other) for other in range(size)],
        "places": (local_rank, local_size, cross_size),
        "totals": totals,
        "rows": gathered[:, 0].tolist(),
    }


@pytest.mark.parametrize(
    "host_of",
    [
        pytest.param([0, 1], marks=pytest.mark.slow),
        [0, 1, 2],
        [0, 0, 1, 1],
        pytest.param([0, 1, 2, 3], marks=pytest.mark.slow),
    ],
)
def test_ranks_on_several_hosts(make_hosts: Any, host_of: list[int]) -> None:
    size, host_count = len(host_of), len(set(host_of))
    results = run_on(make_hosts(Network(host_count)), work, host_of)
    total = float(sum(range(1, size + 1)))
    rows = [rank for rank in range(size) for _ in range(rank + 1)]
    per_host = size // host_count
    for rank, result in enumerate(results):
        assert result["transports"] == [
            "self"
            if other == rank
            else "shm"
            if host_of[other] == host_of[rank]
            else "tcp"
            for other in range(size)
        ]
        assert result["places"] == (rank % per_host, per_host, host_count)
        assert result["totals"] == [(total, total)] * 4
        assert result["rows"] == rows


def reduce_16_mib(wire_dtype: str | None) -> tuple[float, float]:
    rank, _ = join()
    data = np.full(4 << 20, rank + 1, np.float32)
    total = _native.allreduce(data, "sum", "big", wire_dtype=wire_dtype)
    return float(total.min()), float(total.max())


@pytest.mark.parametrize(
    ("wire_dtype", "nbytes"),
    [
        pytest.param(None, 16 << 20, marks=pytest.mark.slow),
        ("bfloat16", 8 << 20),
    ],
)
def test_data_cross_once_per_host(
    make_hosts: Any, wire_dtype: str | None, nbytes: int
) -> None:
    network = make_hosts(Network(2))
    worker = functools.partial(reduce_16_mib, wire_dtype)
    results = run_on(network, worker, [0, 0, 1, 1])
    assert results == [(10.0, 10.0)] * 4
    for host in range(2):
        # Of two hosts each sends half the data, and half the result. If every
        # rank sent for itself, it would be half as much again.
        assert nbytes < network.sent_nbytes(host) < 1.2 * nbytes


def reduce_many_sizes() -> list[bool]:
    rank, _ = join()
    exact = []
    for turn, count in enumerate([1, 700, 3_000, 40_000, 600_000, 5]):
        data = np.arange(count, dtype=np.float32) % 1000 + rank
        total = _native.allreduce(data, "sum", f"size{turn}")
        expected = 2 * (np.arange(count, dtype=np.float32) % 1000) + 1
        exact.append(bool((total == expected).all()))
    return exact


def test_lost_and_late_packets_change_nothing(make_hosts: Any) -> None:
    link = make_hosts(LossyLink(loss=0.02, delay_s=0.002))
    results = run_on(link, reduce_many_sizes, [0, 1], timeout_s=120)
    assert results == [[True] * 6] * 2
    assert link.lost > 10
    assert link.carried > 1000


def agree_then_reduce() -> str:
    rank, size = join()
    message = ""
    for count in (3, 100_000):
        try:
            _native.allreduce(np.ones(count + rank, np.float32), "sum", "odd")
        except RuntimeError as error:
            message += str(error)
        total = _native.allreduce(np.ones(count, np.float32), "sum", "even")
        assert (total == size).all()
    return message


def test_a_mismatch_over_a_bad_link_breaks_nothing(make_hosts: Any) -> None:
    link = make_hosts(LossyLink(loss=0.02, delay_s=0.002))
    results = run_on(link, agree_then_reduce, [0, 1], timeout_s=120)
    assert results[0] == results[1]
    assert results[0].startswith("RankMismatchError: ")
    assert "rank 0 has [3], rank 1 has [4]" in results[0]
    assert "rank 0 has [100000], rank 1 has [100001]" in results[0]
