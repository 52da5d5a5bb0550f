"""`horovod.spark`: a function on ranks that are tasks of Spark's."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

import ring_keras.spark
from ring_keras.horovod._absent import absent, refuse_unless_default

__all__ = ["run", "run_elastic"]

_NO_MPI = "Spark's tasks start the ranks."
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
    if start_timeout is None:
        start_timeout = float(os.environ.get("HOROVOD_SPARK_START_TIMEOUT", "600"))
    variables = dict(env or {})
    if nics is not None:
        variables["RING_KERAS_INTERFACES"] = ",".join(nics)
    return ring_keras.spark.run(
        fn, args, kwargs, num_proc=num_proc, env=variables, start_timeout=start_timeout
    )


def run_elastic(*_: Any, **__: Any) -> NoReturn:
    """Horovod's ranks may come and go; those of a barrier stage cannot.

    Raises:
        AbsentError: Always.
    """
    absent(
        "spark.run_elastic",
        "Spark cannot give a running barrier stage another task. "
        "ring_keras.spark.run(max_restarts=...) starts all ranks again.",
    )
