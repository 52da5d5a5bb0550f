"""Functions whose ranks come and go, on a cluster of two nodes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import elastic_functions, processes
from support.elastic_functions import (
    Job,
    await_sizes,
    job_in,
    process_above,
    require_one_was_replaced,
    run_while,
    train,  # noqa: F401  Of the script below.
)
from support.processes import wait_until

pytestmark = [pytest.mark.engines, pytest.mark.timeout(600)]
ray = pytest.importorskip("ray", reason="`make test-engines`")

from ring_keras.engines.outcomes import RankFailedError  # noqa: E402
from ring_keras.horovod._absent import AbsentError  # noqa: E402
from ring_keras.horovod.ray import ElasticRayExecutor, RayExecutor  # noqa: E402
from ring_keras.ray import run_elastic  # noqa: E402
from ring_keras.ray.agents import Agents, StillbornError  # noqa: E402

# The workers do not have the tests' modules.
for module in (elastic_functions, processes, sys.modules[__name__]):
    ray.cloudpickle.register_pickle_by_value(module)


@pytest.fixture
def job(cluster: Any, tmp_path: Path) -> Iterator[Job]:
    with job_in(tmp_path) as job:
        yield job


def agent_worker_of(pid: int) -> int:
    """The actor's process above a rank's."""
    return process_above(pid, b"AgentActor")


@pytest.mark.parametrize("victim", ["process", "worker"])
def test_another_takes_the_place_of_one_that_is_killed(job: Job, victim: str) -> None:
    before: set[int] = set()
    killed: set[int] = set()

    def kill() -> None:
        before.update(map(int, job.notes("sizes")))
        pid = min(before)
        killed.add(pid)
        above = pid if victim == "process" else agent_worker_of(pid)
        os.kill(above, signal.SIGKILL)
        await_sizes(job, 1, "[2, 1]")
        await_sizes(job, 2, "[2, 1, 2]")

    results = run_while(run_elastic, job, kill, min_workers=1, max_workers=2)

    require_one_was_replaced(results, before, killed)


def test_a_lost_node_is_replaced(job: Job, cluster: Any) -> None:
    # Each rank takes the larger part of a node.
    third = cluster.add_node(num_cpus=4, object_store_memory=100 << 20)
    try:

        def remove() -> None:
            nonlocal third
            by_node = {
                int(agent_worker_of(int(pid))): int(pid) for pid in job.notes("sizes")
            }
            assert len(by_node) == 3
            cluster.remove_node(third, allow_graceful=False)
            await_sizes(job, 2, "[3, 2]")
            third = cluster.add_node(num_cpus=4, object_store_memory=100 << 20)
            await_sizes(job, 3, "[3, 2, 3]")

        results = run_while(
            run_elastic, job, remove, min_workers=2, max_workers=3, cpus_per_worker=3
        )
    finally:
        if third in cluster.list_all_nodes():
            cluster.remove_node(third)

    assert [rank for rank, *_ in results] == [0, 1, 2]
    assert all(total == step for _, _, total, step, _ in results)


def test_what_all_ranks_raise_is_raised(job: Job) -> None:
    def fail() -> None:
        import ring_keras as ring

        ring.init()
        raise ValueError("of the test")

    with pytest.raises(RankFailedError, match="ValueError: of the test") as raised:
        run_elastic(fail, min_workers=2, env=job.env)

    assert "raise ValueError" in raised.value.details
    assert str(raised.value).startswith(f"rank {raised.value.rank} raised ")


def test_a_rank_whose_result_is_lost_is_missed(job: Job) -> None:
    def leave() -> int:
        import ring_keras as ring

        ring.init()
        rank = ring.rank()
        ring.shutdown()
        if rank == 1:
            os._exit(0)  # As well as it can, but without a word.
        return rank

    with pytest.raises(RankFailedError, match=r"ranks \[1\] returned is lost"):
        run_elastic(leave, min_workers=2, env=job.env)


class Broken:
    def __init__(self) -> None:
        raise OSError("of the test")

    def address(self) -> str:
        return "nowhere"


def test_workers_that_do_not_start_end_the_job(cluster: Any) -> None:
    agents = Agents(ray.remote(num_cpus=0)(Broken).remote, least=1, most=2)

    with pytest.raises(StillbornError, match="3 workers in a row") as raised:
        wait_until(lambda: bool(agents.advance()), "a worker has started", 60)

    assert "OSError: of the test" in str(raised.value)
    agents.end()


def test_nothing_is_left_when_the_caller_is_killed(job: Job, cluster: Any) -> None:
    script = job.directory / "script.py"
    script.write_text(
        f"import sys; sys.path[:] = {[str(Path(__file__).parent), *sys.path]!r}\n"
        "import ray\n"
        f"ray.init({cluster.address!r})\n"
        "import test_ray_elastic as tests\n"
        f"tests.run_elastic(tests.train, [tests.Path({str(job.directory)!r}), 2], "
        f"min_workers=2, env={job.env!r})\n"
    )
    with subprocess.Popen([sys.executable, str(script)]) as caller:
        try:
            await_sizes(job, 2, "[2]")
        finally:
            caller.kill()

    wait_until(lambda: not job.processes(), "no process is left", 60)


def test_the_executor_with_horovods_name(job: Job) -> None:
    def function() -> tuple[int, int, str]:
        import ring_keras.horovod.tensorflow as hvd

        hvd.init()
        found = hvd.rank(), hvd.size(), os.environ["LANG"]
        hvd.shutdown()  # Results are by rank all the same.
        return found

    settings = ElasticRayExecutor.create_settings(min_num_proc=2, max_num_proc=2)
    # LANG is the conductor's, too. What is encrypted, the store must be as well.
    chosen = {"LANG": "C.here", "RING_KERAS_ENCRYPT": "1", **job.env}
    executor = ElasticRayExecutor(settings, env_vars=chosen)
    executor.start()

    assert executor.run(function) == [(0, 2, "C.here"), (1, 2, "C.here")]

    with pytest.raises(AbsentError, match="use_gpu"):
        ElasticRayExecutor(settings, use_gpu=True)


def test_the_executor_that_horovod_has_for_all(job: Job) -> None:
    def function(factor: int) -> tuple[int, int, int]:
        import ring_keras.horovod.tensorflow as hvd

        hvd.init()
        return hvd.rank(), hvd.size(), factor * hvd.rank()

    executor = RayExecutor(
        RayExecutor.create_settings(timeout_s=120),
        min_workers=2,
        max_workers=2,
        reset_limit=3,
        cooldown_range=[1, 2],
    )
    executor.start(extra_env_vars=job.env)

    assert executor.run(function, [5]) == [(0, 2, 0), (1, 2, 5)]
    executor.shutdown()


@pytest.mark.parametrize(
    "numbers",
    [
        {"min_workers": 0},
        {"min_workers": 3, "max_workers": 2},
        {"min_workers": 1, "cpus_per_worker": 0},
        {"min_workers": 1, "elastic_timeout": 0},
        {"min_workers": 1, "reset_limit": -1},
        {"min_workers": 1, "cooldown_range": (2, 1)},
    ],
)
def test_numbers_that_make_no_sense(numbers: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="Received: "):
        run_elastic(print, **numbers)
