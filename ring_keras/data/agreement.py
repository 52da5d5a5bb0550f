"""What each rank looks up for itself, and what comes of it on all of them."""

import hashlib
import json
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from ring_keras.errors import RankMismatchError
from ring_keras.job.process_set import ProcessSet
from ring_keras.lifecycle.elastic_launcher import is_late
from ring_keras.values.outcomes import gather_outcomes

__all__ = ["Array", "seen_alike"]

Array = np.ndarray[Any, Any]
_Value = TypeVar("_Value")

# By so much may differ what hosts of several kinds make of the same numbers.
_ROUNDING = 1e-5


def seen_alike(
    name: str,
    look: Callable[[], tuple[_Value, str, Any]],
    process_set: ProcessSet,
    *,
    problem: str,
    remedy: str,
    sample: Callable[[], list[Array]] = list,
) -> _Value:
    """What looking brings, once all ranks know that they see the same.

    A collective of the process set; but of none for a rank that has come to others
    that have begun long ago, and do not answer.

    Args:
        name: Of the function in `ring_keras` that looks.
        look: Returns a value of this rank's own, what the ranks must agree on in words,
            and the same in JSON, as far as it is more than the words.
        process_set: Ranks that take part.
        problem: What it means that ranks see something else.
        remedy: What to do then.
        sample: Called after `look`. Returns some of the data, in arrays of numbers,
            which must be alike where ranks see the same: but for rounding, since hosts
            of several kinds may compute them.

    Raises:
        RankMismatchError: If ranks see something else.
        Exception: What looking raises: see `gather_outcomes`.
    """
    if is_late():
        return look()[0]

    def described() -> tuple[_Value, tuple[list[str], list[Array]]]:
        value, words, contents = look()
        digest = hashlib.sha256(json.dumps(contents).encode()).hexdigest()
        return value, ([words, digest], sample())

    value, outcomes = gather_outcomes(name, described, process_set)
    everyones, samples = zip(*outcomes, strict=True)
    for rank, theirs, seen in zip(process_set.ranks, everyones, samples, strict=True):
        if theirs != everyones[0]:
            raise RankMismatchError(
                "[RK320] "
                f"ring_keras.{name}: {problem}: rank {process_set.ranks[0]} has "
                f"{everyones[0][0]}, rank {rank} has {theirs[0]}. {remedy}"
            )
        if not all(map(_are_alike, seen, samples[0])):
            raise RankMismatchError(
                "[RK320] "
                f"ring_keras.{name}: {problem}: ranks {process_set.ranks[0]} and "
                f"{rank} have {theirs[0]}, but other rows at the same places. {remedy}"
            )
    return value


def _are_alike(ours: Array, theirs: Array) -> bool:
    if ours.shape != theirs.shape:
        return False
    if not np.issubdtype(ours.dtype, np.inexact):
        return np.array_equal(ours, theirs)
    finite = np.abs(theirs[np.isfinite(theirs)])
    tolerance = _ROUNDING * float(finite.max(initial=0))
    return np.allclose(ours, theirs, _ROUNDING, tolerance, equal_nan=True)
