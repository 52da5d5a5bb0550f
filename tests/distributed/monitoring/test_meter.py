"""What the TensorBoard callback asks of one rank."""

from __future__ import annotations

import time

import numpy as np
from support.engine_only import WITHOUT_TENSORFLOW, rank_and_size
from support.rank_pool import RankPools

from ring_keras import _native

WAIT_S = 0.2


def waits_for_rank_1() -> tuple[list[str], list[str], bool]:
    rank, _ = rank_and_size()
    ones = np.ones(1, np.float32)
    _, begin = _native.long_waits(0, WAIT_S / 2)
    for turn in range(4):
        if rank == 1 and turn == 2:
            time.sleep(WAIT_S)
        _native.allreduce(ones, "sum", f"waits/{turn}")
    found, number = _native.long_waits(begin, WAIT_S / 2)
    again, same = _native.long_waits(number, 0.0)
    return [one["name"] for one in found], again, same == number == begin + 4


def test_long_waits_are_told_once(rank_pool: RankPools) -> None:
    pool = rank_pool(2, env=WITHOUT_TENSORFLOW)
    first, last = pool.run(waits_for_rank_1)
    names, again, counted = first
    # A loaded machine may hold rank 1 up elsewhere too.
    assert "waits/2" in names
    assert again == []
    assert counted
    assert last[1:] == ([], True)
