"""Jobs whose ranks have GPUs: the stand-in's, and, marked `gpu`, a real one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support import RankPool
from support.rank_pool import RankPools
from support.real_gpu import has_gpu, real_gpu_environment
from support.stand_in import stand_in_environment

# Four ranks do little that two and three do not.
_SIZES = (1, 2, 3, pytest.param(4, marks=pytest.mark.slow))
_SEVERAL = _SIZES[1:]


def _jobs(fewest: int) -> list[Any]:
    jobs: dict[tuple[str, int], Any] = {("stand-in", size): () for size in (1, 2, 3)}
    jobs |= {("stand-in", 4): pytest.mark.slow}
    jobs |= {("real", size): pytest.mark.gpu for size in (1, 2)}
    return [
        pytest.param(job, marks=marks)
        for job, marks in jobs.items()
        if job[1] >= fewest
    ]


def _name(job: tuple[str, int]) -> str:
    return f"{job[0]}-{job[1]}"


@pytest.fixture(scope="session")
def real_pool() -> Iterator[RankPools]:
    """`real_pool(size)` shares the machine's GPU among that many warm ranks."""
    pools: dict[int, RankPool] = {}

    def find(size: int) -> RankPool:
        if not has_gpu():
            pytest.skip("needs an NVIDIA GPU, and nvidia-smi lists none")
        if size not in pools:
            pools[size] = RankPool(size, env=real_gpu_environment(size))
        return pools[size]

    yield find
    for pool in pools.values():
        pool.close()


def _pool(rank_pool: RankPools, real_pool: Any, job: tuple[str, int]) -> RankPool:
    kind, size = job
    if kind == "real":
        return real_pool(size)
    return rank_pool(
        size, env=stand_in_environment(RING_KERAS_COLLECTIVE_TIMEOUT_S="60")
    )


@pytest.fixture(scope="session", params=_jobs(1), ids=_name)
def ranks(
    request: pytest.FixtureRequest, rank_pool: RankPools, real_pool: Any
) -> RankPool:
    """Warm ranks, alone and together."""
    return _pool(rank_pool, real_pool, request.param)


@pytest.fixture(scope="session", params=_jobs(2), ids=_name)
def peers(
    request: pytest.FixtureRequest, rank_pool: RankPools, real_pool: Any
) -> RankPool:
    """The same, where there is more than one rank."""
    return _pool(rank_pool, real_pool, request.param)


@pytest.fixture(scope="session", params=_SIZES)
def held_ranks(request: pytest.FixtureRequest, rank_pool: RankPools) -> RankPool:
    """Ranks of the stand-in alone, whose devices a test can hold up."""
    return _pool(rank_pool, None, ("stand-in", request.param))


@pytest.fixture(scope="session", params=_SEVERAL)
def logged_peers(request: pytest.FixtureRequest, rank_pool: RankPools) -> RankPool:
    """Ranks of the stand-in alone, which logs what it was given."""
    return _pool(rank_pool, None, ("stand-in", request.param))
