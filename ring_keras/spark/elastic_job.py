"""A function as the ranks of a job that outlives them, which are tasks of Spark's."""

from __future__ import annotations

import contextlib
import pickle
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from py4j.protocol import Py4JError
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from ring_keras.engines.agent_desk import AgentDesk
from ring_keras.engines.elastic_job import (
    elastic_results,
    elastic_settings,
    run_ringrun,
)
from ring_keras.engines.outcomes import RankFailedError
from ring_keras.engines.secret_file import secret_file
from ring_keras.spark.agent_task import AgentTask
from ring_keras.spark.slots import active_session, await_slots
from ring_keras.spark.task_stage import TaskStage

__all__ = ["run_elastic"]


def run_elastic(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    min_workers: int,
    max_workers: int | None = None,
    env: Mapping[str, str] | None = None,
    elastic_timeout: float = 600.0,
    reset_limit: int | None = None,
    cooldown_range: tuple[float, float] | None = None,
    spark: SparkSession | None = None,
) -> list[Any]:
    """Runs a function as the ranks of a job that goes on when some of them are lost.

    The function calls `ring_keras.init()`, and trains with
    `ring_keras.callbacks.Elastic` or `ring_keras.elastic.run`, as a script under
    `ringrun --min-np` does. Each rank is a process below a task of an ordinary stage,
    not a barrier stage's: when a process, a Python worker or an executor is lost, the
    others keep their processes and go on, and another takes its place as soon as Spark
    has a slot.

    Args:
        fn: What every rank runs. Travels as Spark's own functions do.
        args: Its arguments.
        kwargs: Its keyword arguments.
        min_workers: The fewest ranks with which the job begins, and goes on.
        max_workers: Up to so many, as Spark has slots; by default `min_workers`.
        env: Variables that every rank's environment gets.
        elastic_timeout: Time, in seconds, for the ranks to meet after a change, and
            for Spark to have slots for `min_workers`.
        reset_limit: After so many changes another one ends the job.
        cooldown_range: Seconds until a lost process is replaced, at first and at most:
            they double with each loss. By default 1 and 60.
        spark: The session; by default the active one.

    Returns:
        What the function returned, by rank, on those that there were at the end.

    Raises:
        RankFailedError: If the job could not go on.
        ValueError: If a number makes no sense, Spark cannot run so many tasks at once,
            tasks would be run twice, or the driver is another process.
        RuntimeError: If there is no session.
        OSError: If the driver cannot listen at `spark.driver.host`.
    """
    session = active_session(spark)
    if not hasattr(session, "_jsparkSession"):
        raise ValueError(
            "run_elastic runs ringrun in Spark's driver, and with Spark Connect that "
            "is another process. Submit the program: spark-submit train.py"
        )
    context = session.sparkContext
    settings = elastic_settings(
        min_workers=min_workers,
        max_workers=max_workers,
        cpus_per_worker=int(context.getConf().get("spark.task.cpus", "1")),
        env=env,
        elastic_timeout=elastic_timeout,
        reset_limit=reset_limit,
        cooldown_range=cooldown_range,
    )
    if context.getConf().get("spark.speculation", "false") == "true":
        raise ValueError(
            "Spark would run slow tasks twice, and each is a rank: set "
            "spark.speculation=false"
        )
    if session.conf.get("spark.dynamicAllocation.enabled", "false") != "true":
        slots = await_slots(session, settings.min_workers)
        if slots < settings.min_workers:
            raise ValueError(
                f"min_workers={settings.min_workers}: Spark can run {slots} tasks at "
                "once, and each rank is one. Give it more executors or cores, or a "
                "smaller spark.task.cpus."
            )
    address = _address_of_driver(context.getConf().get("spark.driver.host", ""))
    token = secrets.token_bytes(32)
    # In a variable of its own, so that a large one leaves the secret on no disk.
    call = context.broadcast(cloudpickle.dumps(partial(fn, *args, **(kwargs or {}))))
    try:
        with (
            secret_file(token.hex()) as secret,
            AgentDesk(
                address, token, engine="Spark", origin="spark.driver.host"
            ) as desk,
        ):
            task = AgentTask(desk.card, call, settings.environment())
            with TaskStage(session, task, settings.max_workers) as stage:

                def agents() -> dict[str, str]:
                    stage.require_running()
                    return desk.agents()

                code = run_ringrun(settings, address, secret, agents)
                desk.dismiss()
                outcomes = stage.outcomes(time.monotonic() + elastic_timeout)
        results = elastic_results(code, outcomes, [*desk.losses, *stage.problems])
    finally:
        with contextlib.suppress(Py4JError, OSError):  # Spark itself may have ended.
            call.destroy()
    if isinstance(results, RankFailedError):
        raise results
    return [pickle.loads(result) for result in results]


def _address_of_driver(host: str) -> str:
    """Where executors reach it, in digits."""
    found = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
    return str(found[0][4][0])
