"""A function as the ranks of a job, which are the tasks of a barrier stage."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from py4j.protocol import Py4JError
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from ring_keras.engines.outcomes import Outcome, RankFailedError, results_of
from ring_keras.engines.rank_start import rank_variables
from ring_keras.spark.rank_task import SCHEMA, RankTask
from ring_keras.spark.slots import active_session, await_slots, slots_of

__all__ = ["RankFailedError", "run"]

# What Spark says where a Python worker or an executor has ended, and nothing else has.
_SIGNS_OF_LOSS = ("Python worker exited unexpectedly", "ExecutorLostFailure")


def run(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    num_proc: int | None = None,
    env: Mapping[str, str] | None = None,
    start_timeout: float = 120.0,
    max_restarts: int = 0,
    spark: SparkSession | None = None,
) -> list[Any]:
    """Runs a function as every rank of a job, each in a process of its own.

    The function calls `ring_keras.init()`, as a script under `ringrun` does. Ranks are
    the tasks of one barrier stage, numbered host by host. The process of each is a
    child of the task's Python worker, and ends with it.

    Args:
        fn: What every rank runs. Travels as Spark's own functions do.
        args: Its arguments.
        kwargs: Its keyword arguments.
        num_proc: How many ranks; by default as many as tasks can run at once.
        env: Variables that every rank's environment gets.
        start_timeout: How long, in seconds, ranks wait for the others to join.
        max_restarts: How often all ranks are started again after a worker or an
            executor was lost. A function that resumes from a backup goes on then. One
            that fails is not called again.
        spark: The session; by default the active one.

    Returns:
        What the function returned, by rank.

    Raises:
        RankFailedError: If a rank failed, or its worker or executor was lost.
        ValueError: If fewer tasks than `num_proc` can run at once, or executors are
            allocated as they are needed, with which Spark runs no barrier stage.
        PySparkException: What else Spark raises, such as that the job was cancelled.
        RuntimeError: If there is no session.
    """
    session = active_session(spark)
    num_proc = _choose_size(session, num_proc)
    task = RankTask(
        call=cloudpickle.dumps(partial(fn, *args, **(kwargs or {}))),
        env=rank_variables(start_timeout, env),
    )
    stage = session.range(0, num_proc, 1, num_proc).mapInArrow(
        task, SCHEMA, barrier=True
    )
    for restart in range(max_restarts + 1):
        try:
            rows = stage.collect()
        except (Py4JError, PySparkException) as error:
            if not any(sign in str(error) for sign in _SIGNS_OF_LOSS):
                raise
            if restart < max_restarts:
                continue
            raise RankFailedError(
                None,
                f"a rank was lost with its Spark task, and the others were stopped "
                f"(started {restart + 1} times, max_restarts={max_restarts})",
                str(error),
            ) from error
        outcomes: dict[int, Outcome] = {
            row["rank"]: pickle.loads(row["outcome"]) for row in rows
        }
        return results_of([outcomes[rank] for rank in range(num_proc)])
    raise AssertionError


def _choose_size(session: SparkSession, num_proc: int | None) -> int:
    """Spark itself would look for slots for ten minutes before it says something."""
    slots = slots_of(session)
    if slots is None:
        if num_proc is None:
            raise ValueError(
                "num_proc=None: Spark Connect does not tell how many tasks can run at "
                "once. Give the number of ranks."
            )
        return num_proc
    if session.conf.get("spark.dynamicAllocation.enabled", "false") == "true":
        raise ValueError(
            "Spark runs no barrier stage with spark.dynamicAllocation.enabled=true. "
            "Set it to false, and spark.executor.instances to what the ranks need."
        )
    wanted = num_proc
    if wanted is None:
        wanted = session.sparkContext.defaultParallelism
    slots = await_slots(session, wanted)
    if num_proc is None and slots > 0:
        return slots
    if not 1 <= wanted <= slots:
        raise ValueError(
            f"num_proc={wanted}: Spark can run {slots} tasks at once, and each rank is "
            "one. Give it more executors or cores, or a smaller spark.task.cpus."
        )
    return wanted
