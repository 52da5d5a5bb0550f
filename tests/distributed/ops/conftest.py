"""The jobs in which every collective is tested."""

from __future__ import annotations

from typing import Any

import pytest
from support import RankPool
from support.mpi import MPIS, mpi_of
from support.rank_pool import RankPools
from support.toy_transport import APART, by_toy

# What takes TCP's place between hosts, of which each rank has one here.
_OTHERS = [(3, "toy"), (2, "openmpi"), (3, "mpich"), (2, "intel_mpi")]
# Shared memory at every size; TCP with two ranks, and where rings differ from
# pairs.
_JOBS = [
    *[(1, "auto"), (2, "auto"), (3, "auto"), (4, "auto"), (2, "tcp"), (3, "tcp")],
    *_OTHERS,
]
# What differs from others in number alone, or in what is below streams.
_SLOW = [(3, "auto"), (4, "auto"), (2, "tcp"), *_OTHERS]


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
    if transport == "toy":
        env = by_toy()
    elif transport in [mpi.folder for mpi in MPIS]:
        mpi = mpi_of(transport)
        if mpi.library is None:
            pytest.skip(mpi.missing)
        env = APART | mpi.between_hosts()
    return rank_pool(size, env=env)


@pytest.fixture(scope="session", params=_marked(_JOBS), ids=_name)
def ranks(request: pytest.FixtureRequest, rank_pool: RankPools) -> RankPool:
    """Warm ranks, alone and together, over each transport."""
    return _pool(rank_pool, request.param)


@pytest.fixture(scope="session", params=_marked(_JOBS[1:]), ids=_name)
def peers(request: pytest.FixtureRequest, rank_pool: RankPools) -> RankPool:
    """The same, where there is more than one rank."""
    return _pool(rank_pool, request.param)
