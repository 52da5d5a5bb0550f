"""`horovod.spark`: a function on ranks that are tasks of Spark's."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import ring_keras.spark
from ring_keras.horovod._absent import refuse_unless_default
from ring_keras.spark.slots import active_session, await_slots

__all__ = ["run", "run_elastic"]

_NO_MPI = "Spark's tasks start the ranks."
_ON_DRIVER = "What ranks print is printed by the driver, with the rank before it."
_NO_STREAMS = "What ranks print goes to the executors' logs."


def run(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    start_timeout: float | None = None,
    use_mpi: bool | None = None,
    use_gloo: bool | None = None,
    extra_mpi_args: str | None = None,
    env: Mapping[str, str] | None = None,
    stdout: Any = None,
    stderr: Any = None,
    verbose: int = 1,
    nics: Iterable[str] | None = None,
    prefix_output_with_timestamp: bool = False,
    executable: str | None = None,
) -> list[Any]:
    """Calls a function on every rank of a new job, which is a barrier stage.

    Args:
        fn: Calls `init()`, as a script would.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        num_proc: Number of ranks; by default as many as Spark can run tasks at once.
        start_timeout: Seconds for all ranks to join; by default
            `HOROVOD_SPARK_START_TIMEOUT`, or else 600.
        use_mpi: None or False.
        use_gloo: Ignored.
        extra_mpi_args: None.
        env: Variables that the environment of every rank gets.
        stdout: None: what ranks print goes to the executors' logs.
        stderr: None.
        verbose: Ignored.
        nics: The network interfaces to take.
        prefix_output_with_timestamp: False.
        executable: None: that of Spark's Python workers.

    Returns:
        What the function returned, by rank.

    Raises:
        AbsentError: If an argument asks for what is not there.
        RankFailedError: If a rank failed, or its worker or executor was lost.
        ValueError: If Spark cannot run so many tasks at once.
    """
    refuse_unless_default("use_mpi", use_mpi or None, None, _NO_MPI)
    refuse_unless_default("extra_mpi_args", extra_mpi_args, None, _NO_MPI)
    refuse_unless_default("executable", executable, None, _NO_MPI)
    refuse_unless_default("stdout", stdout, None, _NO_STREAMS)
    refuse_unless_default("stderr", stderr, None, _NO_STREAMS)
    refuse_unless_default(
        "prefix_output_with_timestamp", prefix_output_with_timestamp, False, _NO_STREAMS
    )
    return ring_keras.spark.run(
        fn,
        args,
        kwargs,
        num_proc=num_proc,
        env=_variables(env, nics),
        start_timeout=_start_timeout(start_timeout),
    )


def run_elastic(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    start_timeout: float | None = None,
    elastic_timeout: float | None = None,
    reset_limit: int | None = None,
    env: Mapping[str, str] | None = None,
    stdout: Any = None,
    stderr: Any = None,
    verbose: int = 1,
    nics: Iterable[str] | None = None,
    prefix_output_with_timestamp: bool = False,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Any]:
    """Calls a function on ranks that come and go, each of which is a task.

    Args:
        fn: Calls `init()`, and trains with a state or with `Elastic`.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        num_proc: What the next two are by default; by default itself as many as Spark
            can run tasks at once.
        min_num_proc: The fewest ranks with which the job begins, and goes on.
        max_num_proc: Up to so many.
        start_timeout: Seconds for `init()` to meet the other ranks; by default
            `HOROVOD_SPARK_START_TIMEOUT`, or else 600.
        elastic_timeout: Seconds for the ranks to meet after a change; by default
            `HOROVOD_ELASTIC_TIMEOUT`, or else 600.
        reset_limit: After so many changes another one ends the job.
        env: Variables that the environment of every rank gets.
        stdout: None: what ranks print is printed by the driver.
        stderr: None.
        verbose: Ignored.
        nics: The network interfaces to take.
        prefix_output_with_timestamp: False.
        min_np: The older name of `min_num_proc`.
        max_np: The older name of `max_num_proc`.

    Returns:
        What the function returned, by rank, on those that there were at the end.

    Raises:
        AbsentError: If an argument asks for what is not there.
        RankFailedError: If the job could not go on.
        ValueError: If a number makes no sense, or Spark cannot run so many tasks.
    """
    refuse_unless_default("stdout", stdout, None, _ON_DRIVER)
    refuse_unless_default("stderr", stderr, None, _ON_DRIVER)
    refuse_unless_default(
        "prefix_output_with_timestamp", prefix_output_with_timestamp, False, _ON_DRIVER
    )
    least = min_num_proc if min_np is None else min_np
    most = max_num_proc if max_np is None else max_np
    if least is None or most is None:
        if num_proc is None:
            session = active_session(None)
            num_proc = await_slots(session, session.sparkContext.defaultParallelism)
        least = num_proc if least is None else least
        most = num_proc if most is None else most
    if elastic_timeout is None:
        elastic_timeout = float(os.environ.get("HOROVOD_ELASTIC_TIMEOUT", "600"))
    return ring_keras.spark.run_elastic(
        fn,
        args,
        kwargs,
        min_workers=least,
        max_workers=most,
        env={
            "RING_KERAS_INIT_TIMEOUT_S": f"{_start_timeout(start_timeout):g}",
            **_variables(env, nics),
        },
        elastic_timeout=elastic_timeout,
        reset_limit=reset_limit,
    )


def _start_timeout(given: float | None) -> float:
    if given is not None:
        return given
    return float(os.environ.get("HOROVOD_SPARK_START_TIMEOUT", "600"))


def _variables(
    env: Mapping[str, str] | None, nics: Iterable[str] | None
) -> dict[str, str]:
    variables = dict(env or {})
    if nics:
        variables["RING_KERAS_INTERFACES"] = (
            nics if isinstance(nics, str) else ",".join(nics)
        )
    return variables
