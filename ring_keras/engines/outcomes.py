"""How a function ended in each process of a job."""

from __future__ import annotations

import pickle
import re
import sys
import time
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ring_keras._causes import in_one_line

__all__ = [
    "Outcome",
    "RankFailedError",
    "failure_of",
    "first_failure",
    "lost_a_peer",
    "results_of",
]


@dataclass(frozen=True)
class Outcome:
    """In one process; it travels to whoever asked for the job.

    Attributes:
        result: What its function returned, pickled; None if it failed.
        failure: What went wrong, in one line, to follow the rank's name; None if
            nothing did.
        details: The traceback, if there is one.
        follows: Whether it failed because another rank was lost.
        where: Which process on which host it was.
        number: The process's, in an elastic job; it keeps that.
        place: In an elastic job the last generation that it was in, its rank and its
            size; None: it was in none.
        ended_at: In seconds of the host's clock.
    """

    result: bytes | None = None
    failure: str | None = None
    details: str = ""
    follows: bool = False
    where: str = ""
    number: int = 0
    place: tuple[int, int, int] | None = None
    ended_at: float = field(default_factory=time.time)

    def write(self, path: Path) -> None:
        """Leaves it in a file; whole, or not at all."""
        part = path.with_name(f"{path.name}.part")
        part.write_bytes(pickle.dumps(self))
        part.rename(path)


def failure_of(error: BaseException) -> Outcome:
    """That of a function which has raised it."""
    return Outcome(
        failure=f"raised {in_one_line(error)}",
        details="".join(traceback.format_exception(error)),
        follows=lost_a_peer(error),
    )


def lost_a_peer(error: BaseException) -> bool:
    """Whether it says that another rank was lost, or failed in a call of Keras's.

    In TensorFlow's words or in ours.
    """
    if str(error).startswith("PeerLostError: "):
        return True  # From the core, where there is no TensorFlow.
    if "ring_keras.errors" not in sys.modules:
        return False
    from ring_keras.errors import PeerLostError, from_tensorflow

    ours = from_tensorflow(error)
    # The rank that has failed raises its own error.
    has_failed = re.search(r"cannot take part: its \w+\(\) raised", str(ours))
    return isinstance(ours, PeerLostError) or bool(has_failed)


def first_failure(outcomes: Iterable[Outcome]) -> Outcome | None:
    """The one that took the others along; None if none has failed."""
    failed = [one for one in outcomes if one.failure]
    return min(failed, key=lambda one: (one.follows, one.ended_at), default=None)


class RankFailedError(RuntimeError):
    """A rank that runs a function failed, and so did the job.

    Examples:
        >>> def fail():
        ...     ring.init()
        ...     raise ValueError("no such file")
        >>> try:
        ...     ring.run(fail, np=2)
        ... except ring.RankFailedError as error:
        ...     print("ValueError: no such file" in error.details)
        True

    Attributes:
        rank: The first rank that failed. None: only the text says which one.
        details: The traceback of its function; empty if its process died.
    """

    def __init__(self, rank: int | None, text: str, details: str = "") -> None:
        super().__init__(rank, text, details)
        self.rank = rank
        self.details = details

    def __str__(self) -> str:
        return "\n\n".join(filter(None, [self.args[1], self.details]))


def results_of(outcomes: Sequence[Outcome]) -> list[Any]:
    """What the function returned, by rank.

    Raises:
        RankFailedError: If a rank failed; it names the one that took the others along.
    """
    first = first_failure(outcomes)
    if first is None:
        return [pickle.loads(outcome.result or b"") for outcome in outcomes]
    rank = outcomes.index(first)
    where = f" ({first.where})" if first.where else ""
    raise RankFailedError(rank, f"rank {rank}{where} {first.failure}", first.details)
