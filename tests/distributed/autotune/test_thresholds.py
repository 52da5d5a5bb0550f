"""The thresholds between algorithms: one setting for all ranks, same results."""

from __future__ import annotations

import numpy as np
import pytest
from support import run_ranks, tensors
from support.engine_only import WITHOUT_TENSORFLOW, rank_and_size
from support.rank_pool import RankPools

import ring_keras as ring
from ring_keras import _native

HUGE = str(1 << 40)
NOT_DIRECT = {"RING_KERAS_TRANSPORT": "tcp", "RING_KERAS_DIRECT_MAX_BYTES": "0"}
# Every algorithm for every size: shared memory, and hosts that only TCP joins.
SETTINGS = {
    "shared parts": {"RING_KERAS_SHARED_FLAT_MAX_BYTES": "0"},
    "shared flat": {"RING_KERAS_SHARED_FLAT_MAX_BYTES": HUGE},
    "direct": {"RING_KERAS_TRANSPORT": "tcp", "RING_KERAS_DIRECT_MAX_BYTES": HUGE},
    "doubling": {
        **NOT_DIRECT,
        "RING_KERAS_RECURSIVE_DOUBLING_MAX_BYTES": HUGE,
    },
    "parts": {
        **NOT_DIRECT,
        "RING_KERAS_RECURSIVE_DOUBLING_MAX_BYTES": "0",
        "RING_KERAS_PARTS_MAX_BYTES": HUGE,
    },
    "halving": {
        **NOT_DIRECT,
        "RING_KERAS_RECURSIVE_DOUBLING_MAX_BYTES": "0",
        "RING_KERAS_PARTS_MAX_BYTES": "0",
        "RING_KERAS_HALVING_MAX_BYTES": HUGE,
    },
    "trees": {
        **NOT_DIRECT,
        "RING_KERAS_RECURSIVE_DOUBLING_MAX_BYTES": "0",
        "RING_KERAS_PARTS_MAX_BYTES": "0",
        "RING_KERAS_HALVING_MAX_BYTES": "0",
        "RING_KERAS_TREES_MAX_BYTES": HUGE,
    },
    "ring": {
        **NOT_DIRECT,
        "RING_KERAS_RECURSIVE_DOUBLING_MAX_BYTES": "0",
        "RING_KERAS_PARTS_MAX_BYTES": "0",
        "RING_KERAS_HALVING_MAX_BYTES": "0",
    },
}


def sums() -> list[bytes]:
    own, size = rank_and_size()
    results = []
    for count in (1, 1021, 100_003):
        # Whole numbers: exact in any order, so every algorithm gives the same bits.
        inputs = [
            tensors.small_values(rank, (count,), "float32") for rank in range(size)
        ]
        total = _native.allreduce(inputs[own], "sum", f"sum{count}")
        np.testing.assert_array_equal(total, np.sum(inputs, axis=0))
        results.append(total.tobytes())
        noise = tensors.random_values(own, count, "float32")
        results.append(_native.allreduce(noise, "sum", f"noise{count}").tobytes())
    return results


def algorithms() -> set[str]:
    """What has been run for `sums`, by the engine's own record."""
    return {
        one["algorithm"]
        for one in _native.recent_collectives()
        if one["name"].startswith(("sum", "noise"))
    }


@pytest.mark.parametrize(
    "size",
    [
        pytest.param(2, marks=pytest.mark.slow),
        3,
        pytest.param(4, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("setting", SETTINGS)
def test_every_threshold_gives_equal_bits_on_all_ranks(
    rank_pool: RankPools, setting: str, size: int
) -> None:
    pool = rank_pool(size, WITHOUT_TENSORFLOW | SETTINGS[setting])

    results = pool.run(sums)

    assert all(result == results[0] for result in results)
    # Two ranks of one host always reduce everything.
    expected = "shared flat" if size == 2 and "shared" in setting else setting
    for ran in pool.run(algorithms):
        # More does not fit into an announcement.
        assert ran - {"parts" if setting == "direct" else ""} == {
            expected.replace(" ", "_")
        }


def joined() -> None:
    ring.init()


@pytest.mark.parametrize(
    "transport", ["auto", pytest.param("tcp", marks=pytest.mark.slow)]
)
def test_ranks_with_different_thresholds_do_not_join(transport: str) -> None:
    env = [
        {"RING_KERAS_TRANSPORT": transport, "RING_KERAS_DIRECT_MAX_BYTES": value}
        for value in ("100", "100", "200")
    ]

    outcomes = run_ranks(joined, 3, env=env, check=False)

    for outcome in outcomes:
        assert outcome.exception_type == "RankMismatchError", outcome.describe()
        assert "it is 100 on rank 0 and 200 on rank 2" in outcome.message
