"""Jobs whose ranks have GPUs: the stand-in's, and, marked `gpu`, a real one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from support import RankPool
from support.rank_pool import RankPools
from support.real_gpu import has_gpu, real_gpu_environment
from support.stand_in import stand_in_environment

# Two and four ranks do little that three do not.
_SLOW = (2, 4)
_SIZES = [
    pytest.param(size, marks=pytest.mark.slow if size in _SLOW else ())
    for size in (1, 2, 3, 4)
]
_SEVERAL = _SIZES[1:]


def _jobs(fewest: int) -> list[Any]:
    jobs: dict[tuple[str, int], Any] = {("stand-in", size): () for size in (1, 3)}
    jobs |= {("stand-in", size): pytest.mark.slow for size in _SLOW}
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
    pools: dict[tuple[int, frozenset[tuple[str, str]]], RankPool] = {}

    def find(size: int, env: Mapping[str, str] | None = None) -> RankPool:
        if not has_gpu():
            pytest.skip("needs an NVIDIA GPU, and nvidia-smi lists none")
        own = dict(env or {})
        key = size, frozenset(own.items())
        if key not in pools:
            each = [rank | own for rank in real_gpu_environment(size)]
            pools[key] = RankPool(size, env=each)
        return pools[key]

    yield find
    for pool in pools.values():
        pool.close()


def _pool(
    rank_pool: RankPools, real_pool: Any, job: tuple[str, int], **env: str
) -> RankPool:
    kind, size = job
    if kind == "real":
        return real_pool(size, env=env)
    return rank_pool(
        size, env=stand_in_environment(RING_KERAS_COLLECTIVE_TIMEOUT_S="60", **env)
    )


@pytest.fixture(scope="session", params=_jobs(1), ids=_name)
def ranks(
    request: pytest.FixtureRequest, rank_pool: RankPools, real_pool: Any
) -> RankPool:
    """Warm ranks, alone and together."""
    return _pool(rank_pool, real_pool, request.param)


@pytest.fixture(scope="session", params=_jobs(1), ids=_name)
def ranks_apart(
    request: pytest.FixtureRequest, rank_pool: RankPools, real_pool: Any
) -> RankPool:
    """Each on a host of its own, as it seems."""
    return _pool(rank_pool, real_pool, request.param, RING_KERAS_TRANSPORT="tcp")


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
