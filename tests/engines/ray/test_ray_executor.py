"""Horovod's way to run functions on Ray, on a cluster of two nodes."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator

import pytest
from support.processes import wait_until_dead

pytestmark = [
    pytest.mark.engines,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("cluster"),
]
ray = pytest.importorskip("ray", reason="`make test-engines`")

from ring_keras.horovod._absent import AbsentError  # noqa: E402
from ring_keras.horovod.ray import RayExecutor  # noqa: E402

# The workers do not have the tests' modules.
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])

SETTINGS = RayExecutor.create_settings(timeout_s=120, placement_group_timeout_s=60)


def join() -> tuple[int, int, int, int]:
    import ring_keras.horovod.tensorflow as hvd

    hvd.init()
    return hvd.rank(), hvd.size(), os.getpid(), os.getppid()


def total(value: float) -> float:
    import tensorflow as tf

    import ring_keras.horovod.tensorflow as hvd

    hvd.init()
    return float(hvd.allreduce(tf.constant(value + hvd.rank()), op=hvd.Sum))


def fails_on_rank_1(how: str) -> float:
    rank, *_ = join()
    if rank == 1 and how == "raises":
        raise ValueError("of the test")
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return total(0)


class Counter:
    def __init__(self, start: int, *, step: int) -> None:
        self.count, self.step = start, step

    def add(self) -> int:
        self.count += self.step
        return self.count


@pytest.fixture(scope="module")
def executor() -> Iterator[RayExecutor]:
    executor = RayExecutor(SETTINGS, num_workers=2)
    executor.start(Counter, [10], {"step": 2}, {"OF_THE_TEST": "here"})
    pids = [pid for _, _, pid, _ in executor.run(join)]
    yield executor
    executor.shutdown()
    wait_until_dead(pids, 60)


def test_functions_run_on_ranks_that_stay(executor: RayExecutor) -> None:
    first, again = executor.run(join), executor.run(join)

    assert [each[:2] for each in first] == [(0, 2), (1, 2)]
    assert first == again
    assert executor.run(total, [1.5], {}) == [4.0, 4.0]
    assert ray.get(executor.run_remote(total, kwargs={"value": 2})) == [5.0, 5.0]
    assert executor.run(lambda: os.environ["OF_THE_TEST"]) == ["here", "here"]


def test_each_rank_has_its_object(executor: RayExecutor) -> None:
    assert executor.execute(lambda counter: counter.add()) == [12, 12]
    assert executor.execute_single(lambda counter: counter.add()) == 14
    assert executor.execute(lambda counter: counter.count) == [14, 12]


def test_a_failure_is_told_and_the_job_begins_again(executor: RayExecutor) -> None:
    with pytest.raises(ValueError, match="of the test"):
        executor.run(fails_on_rank_1, ["raises"])

    assert executor.run(total, [1]) == [3.0, 3.0]


def test_ranks_on_each_of_several_hosts() -> None:
    executor = RayExecutor(SETTINGS, num_hosts=2, num_workers_per_host=2)
    executor.start()
    try:
        told = executor.run(
            lambda: (
                os.environ["RING_KERAS_RANK"],
                ray.get_runtime_context().get_node_id(),
            )
        )
    finally:
        executor.shutdown()

    ranks, nodes = zip(*told, strict=True)
    assert ranks == ("0", "1", "2", "3")
    assert nodes[0] == nodes[1] != nodes[2] == nodes[3]


def test_a_killed_rank_is_told() -> None:
    executor = RayExecutor(SETTINGS, num_workers=2)
    executor.start()
    try:
        with pytest.raises(ray.exceptions.ActorDiedError):
            executor.run(fails_on_rank_1, ["dies"])
    finally:
        began = time.monotonic()
        executor.shutdown()
        assert time.monotonic() - began < 20


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(ValueError, match="either num_workers or num_hosts"):
        RayExecutor(SETTINGS)
    with pytest.raises(ValueError, match="needs use_gpu=True"):
        RayExecutor(SETTINGS, num_workers=2, gpus_per_worker=1)
    with pytest.raises(AbsentError, match="give min_workers, too"):
        RayExecutor(SETTINGS, num_workers=2, max_workers=3)
    with pytest.raises(AbsentError, match="run on CPUs"):
        RayExecutor(SETTINGS, min_workers=1, use_gpu=True)
    elastic = RayExecutor(SETTINGS, min_workers=1)
    with pytest.raises(RuntimeError, match=r"call start\(\) first"):
        elastic.run(join)
    elastic.start()
    with pytest.raises(AbsentError, match="come and go"):
        elastic.execute(print)
    with pytest.raises(RuntimeError, match=r"call start\(\) first"):
        RayExecutor(SETTINGS, num_workers=2).run(join)
    impatient = RayExecutor.create_settings(placement_group_timeout_s=0.5)
    with pytest.raises(TimeoutError, match=r"no room within 0.5 s for 1 bundles of"):
        RayExecutor(impatient, num_workers=1, cpus_per_worker=1000).start()
