"""What each rank looks up for itself, and what comes of it on all of them."""

import hashlib
import json
from collections.abc import Callable
from typing import Any, TypeVar

from ring_keras.errors import RankMismatchError
from ring_keras.job.process_set import ProcessSet
from ring_keras.lifecycle.elastic_launcher import is_late
from ring_keras.ops.outcomes import gather_outcomes

__all__ = ["seen_alike"]

_Value = TypeVar("_Value")


def seen_alike(
    name: str,
    look: Callable[[], tuple[_Value, str, Any]],
    process_set: ProcessSet,
    *,
    problem: str,
    remedy: str,
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

    Raises:
        RankMismatchError: If ranks see something else.
        Exception: What looking raises: see `gather_outcomes`.
    """
    if is_late():
        return look()[0]

    def described() -> tuple[_Value, list[str]]:
        value, words, contents = look()
        return value, [words, hashlib.sha256(json.dumps(contents).encode()).hexdigest()]

    value, everyones = gather_outcomes(name, described, process_set)
    for rank, theirs in zip(process_set.ranks, everyones, strict=True):
        if theirs != everyones[0]:
            raise RankMismatchError(
                "[RK320] "
                f"ring_keras.{name}: {problem}: rank {process_set.ranks[0]} has "
                f"{everyones[0][0]}, rank {rank} has {theirs[0]}. {remedy}"
            )
    return value
