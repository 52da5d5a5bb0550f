"""Ranks that share this machine's GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support import RankPool
from support.real_gpu import has_gpu, real_gpu_environment


@pytest.fixture(scope="session", params=[1, 2])
def ranks(request: pytest.FixtureRequest) -> Iterator[RankPool]:
    """Warm ranks."""
    if not has_gpu():
        pytest.skip("needs an NVIDIA GPU, and nvidia-smi lists none")
    pool = RankPool(request.param, env=real_gpu_environment(request.param))
    yield pool
    pool.close()
