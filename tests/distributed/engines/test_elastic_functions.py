"""A function as an elastic job below an engine's workers: here, this process."""

from __future__ import annotations

import pickle
import secrets
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from ring_keras.engines import pickling
from ring_keras.engines.agent_host import AgentHost
from ring_keras.engines.elastic_job import (
    elastic_results,
    elastic_settings,
    run_ringrun,
)
from ring_keras.engines.outcomes import RankFailedError
from ring_keras.engines.secret_file import secret_file
from ring_keras.launch.addresses import host_port


def run_elastic(function: Callable[[], object]) -> list[bytes] | RankFailedError:
    """As an engine would, with two workers that stay."""
    settings = elastic_settings(
        min_workers=2,
        max_workers=2,
        cpus_per_worker=1,
        env=None,
        elastic_timeout=60.0,
        reset_limit=0,
        cooldown_range=None,
    )
    address, token = "127.0.0.1", secrets.token_bytes(32)
    with ExitStack() as stack, secret_file(token.hex()) as secret:
        hosts = []
        for _ in range(2):
            host = AgentHost(
                address,
                token,
                pickling.dumps(function),
                "cloudpickle",
                settings.environment(),
            )
            stack.callback(host.end)
            hosts.append(host)
        agents = {
            f"worker{number}.invalid": host_port(address, host.port)
            for number, host in enumerate(hosts)
        }
        code = run_ringrun(settings, address, secret, lambda: agents)
        outcomes = [one for host in hosts for one in host.outcomes()]
        return elastic_results(code, outcomes, [])


@pytest.mark.slow
def test_what_the_function_returns_comes_back_by_rank() -> None:
    def function() -> tuple[int, int]:
        import ring_keras as ring

        ring.init()
        return ring.rank(), ring.size()

    results = run_elastic(function)

    assert isinstance(results, list)
    assert [pickle.loads(result) for result in results] == [(0, 2), (1, 2)]


@pytest.mark.slow
def test_the_rank_that_failed_first_is_named() -> None:
    def function() -> None:
        import ring_keras as ring

        ring.init()
        if ring.rank() == 1:
            raise ValueError("no such thing")
        ring.barrier()

    failed = run_elastic(function)

    assert isinstance(failed, RankFailedError)
    assert failed.rank == 1
    assert "raised ValueError: no such thing" in str(failed)
    assert 'raise ValueError("no such thing")' in failed.details
