"""What each rank does for itself, and whether that has failed on one of them."""

from collections.abc import Callable
from typing import Any, TypeVar

from ring_keras.errors import RankMismatchError
from ring_keras.job.process_set import ProcessSet
from ring_keras.values.objects import gather_from_each

__all__ = ["gather_outcomes"]

_Value = TypeVar("_Value")


def gather_outcomes(
    name: str, look: Callable[[], tuple[_Value, Any]], process_set: ProcessSet
) -> tuple[_Value, list[Any]]:
    """What looking brings on every rank, or an error on all of them.

    A collective of the process set. No rank waits for one that has raised.

    Args:
        name: Of the function in `ring_keras` that looks.
        look: Returns a value of this rank's own, and plain values for the others.
        process_set: Ranks that take part.

    Returns:
        This rank's value, and the plain values of each rank.

    Raises:
        RankMismatchError: If it raised on some ranks, or other errors than on others.
        Exception: What it raised, if that is the same on all.
    """
    problem, value, plain = None, None, None
    try:
        value, plain = look()
    except Exception as error:  # File systems have many.
        problem = error
    failure = "" if problem is None else f"{type(problem).__name__}: {problem}"
    outcomes = gather_from_each([failure, plain], name=name, process_set=process_set)
    failures = [failure for failure, _ in outcomes]
    if problem is not None and len(set(failures)) == 1:
        raise problem
    for rank, failure in zip(process_set.ranks, failures, strict=True):
        if failure:
            raise RankMismatchError(
                f"[RK310] ring_keras.{name} failed on rank {rank}: {failure}"
            ) from problem
    return value, [plain for _, plain in outcomes]  # type: ignore[return-value]
