"""What becomes of a function on ranks that come and go."""

from __future__ import annotations

from collections.abc import Sequence

from ring_keras.engines.outcomes import Outcome, RankFailedError
from ring_keras.launch.workers import how_ended

__all__ = ["elastic_results"]


def elastic_results(
    code: int, outcomes: Sequence[Outcome], losses: Sequence[str]
) -> list[bytes] | RankFailedError:
    """What the function returned, by rank, pickled; or why it has not.

    Those of the last generation; of processes, if nobody has joined one.

    Args:
        code: ringrun's exit code.
        outcomes: Of the processes that had the time to say something.
        losses: How workers ended before that.
    """
    ended = "\n".join(
        [f"ringrun {how_ended(code)}; what it said is in the log", *losses]
    )
    places = [one.place for one in outcomes if one.place is not None]
    newest = max(places, default=None)
    last = [one for one in outcomes if newest is None or _is_of(one, newest)]
    if code != 0:
        return _failure(last, ended)
    found = {
        one.number if one.place is None else one.place[1]: one.result
        for one in last
        if one.result is not None
    }
    size = len(found) if newest is None else newest[2]
    missing = [] if newest is None else [r for r in range(size) if r not in found]
    if missing or not found:
        return RankFailedError(
            missing[0] if missing else None,
            f"the job has ended, but what ranks {missing or 'of it'} returned is lost: "
            f"{ended}",
        )
    return [result for _, result in sorted(found.items())]


def _is_of(one: Outcome, place: tuple[int, int, int]) -> bool:
    """Whether it is of that place's generation."""
    return one.place is not None and one.place[0] == place[0]


def _failure(outcomes: Sequence[Outcome], ended: str) -> RankFailedError:
    """Names the process that failed first, and of its own accord."""
    failed = [one for one in outcomes if one.failure]
    if not failed:
        return RankFailedError(None, ended)
    first = min(failed, key=lambda one: (one.follows, one.ended_at))
    rank = None if first.place is None else first.place[1]
    who = f"process {first.number}" if rank is None else f"rank {rank}"
    text = f"{who} {first.failure} ({ended})"
    return RankFailedError(rank, text, first.details)
