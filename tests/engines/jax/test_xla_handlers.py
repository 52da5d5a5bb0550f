"""What XLA calls, driven through JAX: on CPUs here, on a GPU by tests/gpu."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from support import RankPool
from support.jax_calls import jax_environment

pytest.importorskip("jaxlib", reason="`make test-engines`")

from support import jax_cases

pytestmark = [pytest.mark.engines, pytest.mark.timeout(600)]


@pytest.fixture(scope="module", params=[1, 2])
def ranks(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RankPool]:
    env = jax_environment(tmp_path_factory.mktemp("jax"), "cpu")
    pool = RankPool(request.param, env=env)
    yield pool
    pool.close()


@pytest.mark.parametrize(
    "check", jax_cases.CHECKS, ids=lambda check: check.__name__.removeprefix("check_")
)
def test_compiled(ranks: RankPool, check: Callable[[], None]) -> None:
    ranks.run(check, timeout_s=300)
