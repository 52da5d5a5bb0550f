"""What happened in a job, apart from steps: stalls, faults, who took part."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from typing import Any

from ring_keras.errors import NotInitializedError
from ring_keras.job.job import current_job

__all__ = ["add_checkpoint", "add_event", "event", "stalls"]

# A line of a rank's report to ringrun has 4,096 bytes.
_LONGEST_KIND = 50
_LONGEST_TEXT = 500


def add_event(kind: str, text: str) -> None:
    """Records an event of this rank, for `ringrun --event-log` and TensorBoard.

    For example, a checkpoint that is not written by `model.save` or
    `model.save_weights` in a callback.

    Examples:
        >>> ring.monitoring.add_event("checkpoint", "wrote step 1,000 to /shared/run7")

    Args:
        kind: A word, such as "checkpoint", of at most 50 characters; the rest is cut.
        text: A sentence, of at most 500 characters; the rest is cut.

    Raises:
        NotInitializedError: If `init()` has not run.
    """
    job = current_job()
    job.events.add(event(kind[:_LONGEST_KIND], text[:_LONGEST_TEXT], job.rank))


def add_checkpoint(who: str, path: str, steps: int | None) -> None:
    """Notes that a model was saved; without effect outside of a job.

    Args:
        who: The callback's name.
        path: Of the file.
        steps: How many the model has been trained for, if that is known.
    """
    when = "" if steps is None else f" after step {steps:,}"
    with contextlib.suppress(NotInitializedError):
        add_event("checkpoint", f"{who} saved {path}{when}")


def event(kind: str, text: str, rank: int, at: float | None = None) -> dict[str, Any]:
    """One, as TensorBoard's files and `ringrun --event-log` have it.

    Args:
        kind: "stall", "fault", "membership", "checkpoint" and the like.
        text: A sentence.
        rank: Whose it is.
        at: Unix time in seconds. Defaults to now.
    """
    when = time.time() if at is None else at
    return {"time": round(when, 3), "rank": rank, "kind": kind, "text": text}


def stalls(
    rank: int, collectives: Iterable[Any], longer_than_s: float
) -> list[dict[str, Any]]:
    """Those of a rank's collectives in which it waited for another that long."""
    found = []
    for one in collectives:
        if not one.matched_at or one.last_rank in (None, rank):
            continue
        waited_s = one.matched_at - one.submitted_at
        if waited_s >= longer_than_s:
            text = f"{one.kind} '{one.name}' waited {waited_s:.1f} s for rank "
            text += f"{one.last_rank}."
            found.append(event("stall", text, rank, one.matched_at))
    return found
