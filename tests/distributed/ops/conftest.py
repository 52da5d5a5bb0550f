"""The jobs in which every collective is tested."""

from __future__ import annotations

from typing import Any

import pytest
from support import RankPool
from support.rank_pool import RankPools

# Shared memory at every size; TCP with two ranks, and where rings differ from
# pairs.
_JOBS = [(1, "auto"), (2, "auto"), (3, "auto"), (4, "auto"), (2, "tcp"), (3, "tcp")]
# What differs from others in number alone.
_SLOW = [(3, "auto"), (4, "auto"), (2, "tcp")]


def _name(job: tuple[int, str]) -> str:
    return f"{job[0]}-{job[1]}"


def _marked(jobs: list[tuple[int, str]]) -> list[Any]:
    return [
        pytest.param(job, marks=pytest.mark.slow if job in _SLOW else ())
        for job in jobs
    ]


def _pool(rank_pool: RankPools, job: tuple[int, str]) -> RankPool:
    size, transport = job
    # Other tests have the ranks of "auto", too.
    env = {} if transport == "auto" else {"RING_KERAS_TRANSPORT": transport}
    return rank_pool(size, env=env)


@pytest.fixture(scope="session", params=_marked(_JOBS), ids=_name)
def ranks(request: pytest.FixtureRequest, rank_pool: RankPools) -> RankPool:
    """Warm ranks, alone and together, over each transport."""
    return _pool(rank_pool, request.param)


@pytest.fixture(scope="session", params=_marked(_JOBS[1:]), ids=_name)
def peers(request: pytest.FixtureRequest, rank_pool: RankPools) -> RankPool:
    """The same, where there is more than one rank."""
    return _pool(rank_pool, request.param)
