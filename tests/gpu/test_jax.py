"""XLA's side of the collectives, on a real GPU, driven through JAX."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from support import RankPool
from support.jax_calls import jax_environment
from support.real_gpu import has_gpu, real_gpu_environment

pytest.importorskip("jaxlib", reason="needs JAX for GPUs")

from support import jax_cases

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", params=[1, 2])
def jax_ranks(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RankPool]:
    if not has_gpu():
        pytest.skip("needs an NVIDIA GPU, and nvidia-smi lists none")
    own = jax_environment(tmp_path_factory.mktemp("jax"), "cuda")
    env = [rank | own for rank in real_gpu_environment(request.param)]
    pool = RankPool(request.param, env=env)
    yield pool
    pool.close()


@pytest.mark.parametrize(
    "check", jax_cases.CHECKS, ids=lambda check: check.__name__.removeprefix("check_")
)
def test_compiled(jax_ranks: RankPool, check: Callable[[], None]) -> None:
    jax_ranks.run(check)
