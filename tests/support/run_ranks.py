"""Runs a worker function on fresh ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, overload

from support.job import Environment
from support.outcome import RankOutcome
from support.rank_processes import RankProcesses, report


@overload
def run_ranks(
    worker: Callable[..., Any],
    size: int,
    *,
    env: Environment | None = ...,
    timeout_s: float = ...,
    args: Sequence[Any] = ...,
    kwargs: Mapping[str, Any] | None = ...,
    check: Literal[True] = ...,
    bind_address: str = ...,
    command_prefix: Sequence[Sequence[str]] | None = ...,
) -> list[Any]: ...


@overload
def run_ranks(
    worker: Callable[..., Any],
    size: int,
    *,
    env: Environment | None = ...,
    timeout_s: float = ...,
    args: Sequence[Any] = ...,
    kwargs: Mapping[str, Any] | None = ...,
    check: Literal[False],
    bind_address: str = ...,
    command_prefix: Sequence[Sequence[str]] | None = ...,
) -> list[RankOutcome]: ...


def run_ranks(
    worker: Callable[..., Any],
    size: int,
    *,
    env: Environment | None = None,
    timeout_s: float = 90,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    check: bool = True,
    bind_address: str = "127.0.0.1",
    command_prefix: Sequence[Sequence[str]] | None = None,
) -> list[Any]:
    """Runs `worker` in `size` new processes that can form one job.

    The processes are spawned, never forked: TensorFlow does not survive a fork.
    Nothing is imported or initialized for the worker; it calls `ring.init()`
    itself. Where one warm set of processes will do, `rank_pool` is much faster.

    Args:
        worker: Module-level function, or a `functools.partial` of one. To die
            at some point it sends itself a signal.
        size: Number of ranks.
        env: Extra variables: one mapping, or one per rank. Ranks that get
            different RING_KERAS_HOST_NAMEs count as being on different hosts.
        timeout_s: Time for everything. Who is late prints its stacks and is
            killed, with its children.
        args: Positional arguments for `worker`, the same on every rank.
        kwargs: Keyword arguments for it.
        check: Whether a failing rank fails the test.
        bind_address: Where the job's store listens.
        command_prefix: Per rank, words put before the Python command, such as
            `["ip", "netns", "exec", "left"]`.

    Returns:
        What each rank's worker returned, by rank; with `check=False` a
        `RankOutcome` for each.

    Raises:
        AssertionError: If `check` and a rank raised, died, exited with another
            code than 0 or was late. Shows every such rank's traceback and the
            end of what it printed.
    """
    ranks = RankProcesses(
        size, env=env, bind_address=bind_address, command_prefix=command_prefix
    )
    try:
        outcomes = ranks.run(
            worker,
            args,
            kwargs,
            timeout_s=timeout_s,
            last=True,
            hurry_after_failure=check,
        )
    finally:
        ranks.close()
    if not check:
        return outcomes
    if not all(outcome.ok for outcome in outcomes):
        raise AssertionError(report(outcomes, f"{_name(worker)} on {size} ranks"))
    return [outcome.result for outcome in outcomes]


def _name(worker: Callable[..., Any]) -> str:
    return getattr(worker, "__qualname__", repr(worker))
