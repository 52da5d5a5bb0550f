"""Functions whose ranks come and go, on executors that do."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.engines,
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("java") is None, reason="needs a Java"),
]
pytest.importorskip("pyspark", reason="`make test-engines`")
from pyspark import cloudpickle  # noqa: E402
from pyspark.sql import SparkSession  # noqa: E402
from support import elastic_functions, functions_of_ranks, processes  # noqa: E402
from support.elastic_functions import (  # noqa: E402
    Job,
    await_sizes,
    job_in,
    process_above,
    require_one_was_replaced,
    run_while,
)
from support.processes import wait_until  # noqa: E402
from support.spark_sessions import MASTERS, spark_session  # noqa: E402

import ring_keras.horovod.spark as hvd_spark  # noqa: E402
from ring_keras.horovod._absent import AbsentError  # noqa: E402
from ring_keras.spark import RankFailedError, run_elastic  # noqa: E402

TESTS_DIR = Path(__file__).parents[2]
for module in (elastic_functions, processes, sys.modules[__name__]):
    cloudpickle.register_pickle_by_value(module)
functions_of_ranks.travel_by(cloudpickle)

# What is above a rank, by what its command line has.
WORKER, EXECUTOR = b"pyspark", b"CoarseGrainedExecutorBackend"


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with spark_session(MASTERS[1]) as session:
        yield session


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    with job_in(tmp_path) as job:
        yield job


@pytest.mark.parametrize("victim", ["process", "worker", "executor"])
def test_another_takes_the_place_of_one_that_is_killed(
    spark: SparkSession, job: Job, victim: str
) -> None:
    before: set[int] = set()
    killed: set[int] = set()

    def kill() -> None:
        before.update(map(int, job.notes("sizes")))
        pid = min(before)
        killed.add(pid)
        names = {"worker": WORKER, "executor": EXECUTOR}
        above = process_above(pid, names[victim]) if victim in names else pid
        os.kill(above, signal.SIGKILL)
        await_sizes(job, 1, "[2, 1]")
        await_sizes(job, 2, "[2, 1, 2]")

    results = run_while(
        run_elastic, job, kill, min_workers=1, max_workers=2, spark=spark
    )

    require_one_was_replaced(results, before, killed)


def total(factor: int) -> tuple[int, int, float]:
    """Of all ranks."""
    import tensorflow as tf

    import ring_keras.horovod.tensorflow as hvd

    hvd.init()
    found = hvd.allreduce(tf.constant(factor * (hvd.rank() + 1.0)), op=hvd.Sum)
    return hvd.rank(), hvd.size(), float(found)


def test_ranks_that_spark_has_no_slot_for_are_not_waited_for(
    spark: SparkSession, job: Job
) -> None:
    results = run_elastic(total, [1], min_workers=2, max_workers=3, env=job.env)

    assert results == [(0, 2, 3.0), (1, 2, 3.0)]


def test_what_all_ranks_raise_is_raised(spark: SparkSession, job: Job) -> None:
    def fail() -> None:
        import ring_keras as ring

        ring.init()
        raise ValueError("of the test")

    with pytest.raises(RankFailedError, match="ValueError: of the test") as raised:
        run_elastic(fail, min_workers=2, env=job.env)

    assert "raise ValueError" in raised.value.details


def test_a_cancelled_job_has_failed(spark: SparkSession, job: Job) -> None:
    def cancel() -> None:
        wait_until(lambda: len(list(job.directory.iterdir())) == 4, "both run", 300)
        spark.sparkContext.cancelAllJobs()

    thread = threading.Thread(target=cancel)
    thread.start()
    # Whether the stage or ringrun below it is first to end is left to chance.
    with pytest.raises(RankFailedError, match="cancel"):
        function = functions_of_ranks.writes_its_pid_and_waits
        run_elastic(function, [str(job.directory)], min_workers=2, env=job.env)
    thread.join(60)


def test_too_few_slots_are_told(spark: SparkSession) -> None:
    with pytest.raises(ValueError, match="min_workers=3: Spark can run 2 tasks"):
        run_elastic(print, min_workers=3)


def test_nothing_is_left_when_the_driver_is_killed(job: Job) -> None:
    script = job.directory / "script.py"
    script.write_text(
        "from pyspark import cloudpickle\n"
        "from pyspark.sql import SparkSession\n"
        "from support import functions_of_ranks\n"
        "import ring_keras.spark\n"
        "functions_of_ranks.travel_by(cloudpickle)\n"
        'builder = SparkSession.builder.master("local[2]")\n'
        'builder.config("spark.ui.enabled", "false").getOrCreate()\n'
        "ring_keras.spark.run_elastic(functions_of_ranks.writes_its_pid_and_waits, "
        f"[{str(job.directory)!r}], min_workers=2, env={job.env!r})\n"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join([*sys.path, str(TESTS_DIR)])}
    with subprocess.Popen([sys.executable, str(script)], env=env) as driver:
        try:
            wait_until(lambda: len(list(job.directory.iterdir())) == 5, "all run", 300)
        finally:
            driver.kill()

    wait_until(lambda: not job.processes(), "no process is left", 60)


def test_horovods_users_write_it_so(spark: SparkSession, job: Job) -> None:
    results = hvd_spark.run_elastic(
        total,
        args=(10,),
        num_proc=2,
        min_np=2,
        max_np=3,
        start_timeout=120,
        elastic_timeout=120,
        reset_limit=3,
        env=job.env,
        verbose=2,
        nics="lo",
    )

    assert results == [(0, 2, 30.0), (1, 2, 30.0)]
    with pytest.raises(AbsentError, match="stdout"):
        hvd_spark.run_elastic(print, num_proc=2, stdout=sys.stdout)


@pytest.mark.parametrize(
    "numbers", [{"min_workers": 0}, {"min_workers": 2, "max_workers": 1}]
)
def test_numbers_that_make_no_sense(
    spark: SparkSession, numbers: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match="Received: "):
        run_elastic(print, **numbers)
