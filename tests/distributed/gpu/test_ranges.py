"""Collectives are ranges in the timelines of NVIDIA's profilers."""

from __future__ import annotations

import numpy as np
from support.gpu_calls import gpu
from support.rank_pool import RankPools
from support.stand_in import Control, stand_in_environment

from ring_keras import _native


def shows_ranges() -> tuple[list[str], list[str]]:
    ones = np.ones(4, np.float32)
    gpu().allreduce([ones], name="before").results()
    control = Control()
    before = [line for line in control.log() if line.startswith("range ")]
    # As init() does where every rank has a GPU.
    _native.use_cuda_device(gpu().stream.device)
    gpu().allreduce([ones], name="gradients").results()
    _native.allreduce(ones, "sum", "loss")
    return before, [line for line in control.log() if line.startswith("range ")]


def test_a_collective_is_a_range_where_there_is_cuda(rank_pool: RankPools) -> None:
    pool = rank_pool(2, env=stand_in_environment())
    try:
        found = pool.run(shows_ranges)
    finally:
        pool.kill()  # The job goes on showing them.
    for before, after in found:
        assert before == []
        first, second = after[0].split()[1], after[2].split()[1]
        assert after == [
            f"range {first} begins: allreduce 'gradients', 16 bytes",
            f"range {first} ends",
            f"range {second} begins: allreduce 'loss', 16 bytes",
            f"range {second} ends",
        ]
