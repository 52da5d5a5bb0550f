"""Jobs with too many ranks to connect them all: processes, on many hosts."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.engine_only import join
from support.faults.work import what_the_job_has
from support.hosts import run_on
from support.network import Hosts, Network, run

from ring_keras import _native

pytestmark = pytest.mark.slow

# Each rank has 33 on other hosts, where up to 24 would all be connected; and hosts 9
# to 11 are below host 1 in the tree, which is below host 0.
HOST_COUNT = 12
HOST_OF = [rank // 3 for rank in range(36)]
STREAMS = 2
# As docs/reliability.md promises.
NOTICE_S = 5.0
GOOD_BYE_S = 6.0


def reduce(count: int, name: str, wire_dtype: str | None = None) -> None:
    rank, size = _native.topology()[:2]
    data = np.arange(count, dtype=np.float32) % 7 + rank
    total = _native.allreduce(data, "sum", name, wire_dtype=wire_dtype)
    expected = size * (np.arange(count) % 7) + size * (size - 1) // 2
    np.testing.assert_allclose(total, expected, rtol=0.02 if wire_dtype else 0)


def train(turn: int) -> None:
    """The collectives of a training."""
    rank, size = _native.topology()[:2]
    for count in (1, 1_000, 20_000, 1_000_000):
        reduce(count, f"sum of {count}")
    data = np.full(70_000, rank, np.float32)
    root = (7 * turn + 5) % size
    assert (_native.broadcast(data, root, f"weights {turn}") == root).all()
    rows = _native.allgather(np.full((rank % 3 * 1_000, 2), rank, np.int32), "rows")
    counts = [other % 3 * 1_000 for other in range(size)]
    assert (rows[:, 1] == np.repeat(np.arange(size), counts)).all()


def exchange() -> None:
    """What takes a link to every rank, or to one of each host."""
    rank, size = _native.topology()[:2]
    to = np.arange(size)
    data = np.repeat(rank * size + to, to % 3).astype(np.int64)
    got, splits = _native.alltoall(data, [int(n) for n in to % 3], "all to all")
    assert splits.tolist() == [rank % 3] * size
    assert got.tolist() == np.repeat(to * size + rank, rank % 3).tolist()
    part = _native.reduce_scatter(np.full((2 * size, 100), rank, np.float32), "sum")
    assert part.shape == (2, 100)
    assert (part == size * (size - 1) // 2).all()
    reduce(100_000, "in 16 bits", "bfloat16")


def disagree(rank: int) -> str:
    """The error, on all ranks, of one that reduces more than the others."""
    odd = np.ones(2_000 + (rank == 20), np.float32)
    with pytest.raises(RuntimeError) as info:
        _native.allreduce(odd, "sum", "odd")
    return str(info.value)


def work() -> tuple[int, str]:
    before = what_the_job_has()
    rank, _ = join()
    for turn in range(3):
        train(turn)
    sockets = what_the_job_has()["socket:"]
    told = disagree(rank)
    exchange()
    train(3)
    assert disagree(rank) == told
    train(4)
    _native.shutdown("done")
    assert what_the_job_has() == before
    return sockets, told


def test_many_ranks_do_all_that_few_do(make_hosts: Any) -> None:
    network = make_hosts(Network(HOST_COUNT))
    results = run_on(network, work, HOST_OF)
    (told,) = {told for _, told in results}
    assert told.startswith("RankMismatchError: ")
    assert "rank 0 has [2000], rank 20 has [2001]" in told
    # A training has not connected everybody with everybody.
    assert max(sockets for sockets, _ in results) < 33 * STREAMS // 2
    require_nobody_on(network)


def lose_one(victim: int, note: Path) -> tuple[str, float, float]:
    """What the others are told of it, and when, and when they had left the job."""
    before = what_the_job_has()
    rank, _ = join()
    train(0)

    def end() -> None:
        note.write_text(str(time.monotonic()))
        os.kill(os.getpid(), signal.SIGKILL)

    if rank == victim:
        # Whenever that is, it is in one of the allreduces below.
        threading.Timer(0.5, end).start()
    with pytest.raises(RuntimeError) as info:
        while True:
            reduce(300_000, "until the end")
    told_at = time.monotonic()
    _native.shutdown("a rank is lost")
    assert what_the_job_has() == before
    return str(info.value), told_at, time.monotonic()


# Above all others in the tree, above some, and above none.
@pytest.mark.parametrize("victim", [0, 3, 35])
def test_all_are_told_of_a_killed_rank(
    make_hosts: Any, tmp_path: Path, victim: int
) -> None:
    network = make_hosts(Network(HOST_COUNT))
    note = tmp_path / "killed"
    outcomes = run_on(network, lose_one, HOST_OF, args=(victim, note), check=False)
    lost = outcomes.pop(victim)
    assert lost.signal == signal.SIGKILL, lost.describe()
    killed_at = float(note.read_text())
    for outcome in outcomes:
        assert outcome.ok, outcome.describe()
        told, told_at, left_at = outcome.result
        assert told.startswith(f"PeerLostError: [RK201] rank {victim} (host host"), told
        assert f"pid {lost.pid}) was killed by SIGKILL" in told
        assert told == outcomes[0].result[0]
        assert told_at - killed_at < NOTICE_S, outcome.describe()
        assert left_at - told_at < GOOD_BYE_S, outcome.describe()
    require_nobody_on(network)


def require_nobody_on(hosts: Hosts) -> None:
    """No process is left."""
    for name in hosts.names:
        assert run("ip", "netns", "pids", name) == "", name
