"""Ranks of one host of which one shares no memory with the others."""

from __future__ import annotations

import numpy as np
import pytest
from support import run_ranks
from support.engine_only import WITHOUT_TENSORFLOW, join

from ring_keras import _native

# Nothing, one, a message, the shortest that is cut into rounds, several rounds.
COUNTS = [0, 1, 1000, 100_000, 700_001]


def every_collective(tcp_rank: int) -> None:
    rank, size = join()
    others = {_native.transport_to(other) for other in range(size) if other != rank}
    assert "tcp" in others
    assert ("shm" in others) == (rank != tcp_rank)
    for count in COUNTS:
        # Again: where all ranks share memory, later uses of a name take another way.
        for use in range(3):
            own = np.arange(count, dtype=np.float32) % 61 + rank + use
            total = sum(np.arange(count) % 61 + other + use for other in range(size))
            summed = _native.allreduce(own, "sum", f"sum {count}")
            np.testing.assert_array_equal(summed, total)
            part = _native.reduce_scatter(own, "sum", f"scatter {count}")
            np.testing.assert_array_equal(part, np.array_split(total, size)[rank])
            rows = _native.allgather(own[: count - rank], f"rows {count}")
            np.testing.assert_array_equal(
                rows, np.concatenate([own[: count - r] - rank + r for r in range(size)])
            )
            sent = _native.broadcast(own, 1, f"root {count}")
            np.testing.assert_array_equal(sent, own - rank + 1)
    _native.barrier()
    pair = _native.add_communicator([0, 2])
    if rank != 1:
        ones = np.ones(50_000, np.float32)
        summed = _native.allreduce(ones, "sum", "pair", communicator_id=pair)
        np.testing.assert_array_equal(summed, 2 * ones)
    _native.barrier()
    _native.remove_communicator(pair)


@pytest.mark.parametrize("tcp_rank", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_a_rank_without_shared_memory_takes_part_in_everything(tcp_rank: int) -> None:
    env = [
        {
            **WITHOUT_TENSORFLOW,
            "RING_KERAS_COLLECTIVE_TIMEOUT_S": "20",
            "RING_KERAS_TRANSPORT": "tcp" if rank == tcp_rank else "auto",
        }
        for rank in range(3)
    ]
    run_ranks(every_collective, 3, env=env, args=[tcp_rank])
