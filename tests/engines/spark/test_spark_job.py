"""Jobs on real Spark: threads of a driver, and executors that are processes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import engine_only, functions_of_ranks
from support.processes import is_alive, wait_until

pytestmark = [
    pytest.mark.engines,
    pytest.mark.skipif(shutil.which("java") is None, reason="needs a Java"),
]
pytest.importorskip("pyspark", reason="`make test-engines`")
from pyspark import cloudpickle  # noqa: E402
from pyspark.sql import SparkSession  # noqa: E402
from support.spark_sessions import MASTERS, spark_session  # noqa: E402

import ring_keras.spark as ring_spark  # noqa: E402

TESTS_DIR = Path(__file__).parents[2]
functions_of_ranks.travel_by(cloudpickle)
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="module", params=MASTERS)
def spark(request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    with spark_session(request.param) as session:
        yield session


def test_every_slot_is_a_rank(spark: SparkSession) -> None:
    results = ring_spark.run(functions_of_ranks.told_sum, [10])

    assert results == [(0, 2, 30.0, []), (1, 2, 30.0, [])]


def test_variables_and_keyword_arguments_arrive(spark: SparkSession) -> None:
    def function(*, name: str) -> str | None:
        return os.environ.get(name)

    kwargs, env = {"name": "OF_THE_TEST"}, {"OF_THE_TEST": "here"}
    assert ring_spark.run(function, (), kwargs, num_proc=1, env=env) == ["here"]


def test_too_few_slots_are_told(spark: SparkSession) -> None:
    with pytest.raises(ValueError, match="num_proc=3: Spark can run 2 tasks at once"):
        ring_spark.run(functions_of_ranks.told_sum, [1], num_proc=3)


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("raises", "raised ValueError: no such thing"),
        ("dies", "was killed by SIGKILL"),
    ],
)
def test_the_rank_that_failed_is_named(
    spark: SparkSession, how: str, text: str
) -> None:
    with pytest.raises(ring_spark.RankFailedError) as caught:
        # A function that fails is not called again.
        ring_spark.run(functions_of_ranks.fails_on_rank_1, [how], max_restarts=1)

    assert caught.value.rank == 1
    assert text in str(caught.value)


def loses_its_worker_once(directory: str) -> int:
    rank, _ = engine_only.join()
    times = len(list(Path(directory).glob(f"{rank}.*")))
    Path(directory, f"{rank}.{times}").touch()
    functions_of_ranks._native.barrier("all have begun")
    if rank == 1 and times == 0:
        os.kill(functions_of_ranks.worker_pid(), signal.SIGKILL)
    functions_of_ranks._native.barrier("all go on")
    return times


def test_a_lost_worker_ends_the_job(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ring_spark.RankFailedError) as caught:
        ring_spark.run(loses_its_worker_once, [str(tmp_path)])

    assert caught.value.rank is None
    assert "a rank was lost with its Spark task" in str(caught.value)
    assert "Python worker exited unexpectedly" in caught.value.details


def test_all_ranks_start_again_after_a_lost_worker(
    spark: SparkSession, tmp_path: Path
) -> None:
    results = ring_spark.run(loses_its_worker_once, [str(tmp_path)], max_restarts=1)

    assert results == [1, 1]


def test_a_cancelled_job_is_not_started_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    def cancel() -> None:
        wait_until(lambda: len(list(tmp_path.iterdir())) == 4, "both ranks run", 60)
        spark.sparkContext.cancelAllJobs()

    thread = threading.Thread(target=cancel)
    thread.start()
    function = functions_of_ranks.writes_its_pid_and_waits
    with pytest.raises(Exception, match="cancel"):
        ring_spark.run(function, [str(tmp_path)], max_restarts=2)

    thread.join(60)
    pids = [int(path.name) for path in tmp_path.iterdir()]
    assert len(pids) == 4
    wait_until(lambda: not any(map(is_alive, pids)), "all have ended", 60)


# Ctrl-C for a program that waits, and a driver that dies without a word.
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_when_the_driver_ends(
    number: signal.Signals, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent(
            f"""
            from pyspark import cloudpickle
            from pyspark.sql import SparkSession
            from support import functions_of_ranks
            import ring_keras.spark

            functions_of_ranks.travel_by(cloudpickle)
            builder = SparkSession.builder.master("local[2]")
            session = builder.config("spark.ui.enabled", "false").getOrCreate()
            ring_keras.spark.run(
                functions_of_ranks.writes_its_pid_and_waits, [{str(tmp_path)!r}]
            )
            """
        )
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join([*sys.path, str(TESTS_DIR)])}
    pids: list[int] = []

    def all_run() -> bool:
        pids[:] = [int(path.name) for path in tmp_path.iterdir() if path.suffix == ""]
        return len(pids) == 4

    with subprocess.Popen([sys.executable, script], env=env) as program:
        wait_until(all_run, "both ranks and what they have started run", 60)
        program.send_signal(number)
        program.wait(60)

    wait_until(lambda: not any(map(is_alive, pids)), "all have ended", 60)
