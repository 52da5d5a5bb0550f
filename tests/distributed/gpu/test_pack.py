"""The device code on a rank's GPU, bit for bit what numpy gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support import RankPool, pack_cases
from support.rank_pool import RankPools
from support.stand_in import stand_in_environment


@pytest.fixture(
    scope="module", params=["stand-in", pytest.param("real", marks=pytest.mark.gpu)]
)
def rank(
    request: pytest.FixtureRequest, rank_pool: RankPools, real_pool: Any
) -> RankPool:
    if request.param == "real":
        return real_pool(1)
    return rank_pool(1, env=stand_in_environment(RING_KERAS_COLLECTIVE_TIMEOUT_S="60"))


@pytest.mark.parametrize(
    "check",
    [check for _, check in pack_cases.CASES],
    ids=[name for name, _ in pack_cases.CASES],
)
def test_packs(rank: RankPool, check: Callable[[], None]) -> None:
    rank.run(check)
