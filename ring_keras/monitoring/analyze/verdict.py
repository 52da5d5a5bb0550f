"""In one sentence, why a job stands still."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ring_keras.monitoring.analyze.stacks import users_frame
from ring_keras.monitoring.analyze.trace_file import Trace

__all__ = ["describe", "explain", "held_up_in"]


# Ranks that write of one thing do so within that time, by clocks that differ.
_SAME_S = 10.0


def explain(traces: Mapping[int, Trace]) -> str:
    """Says what the ranks wait for, and where those stand that hold them up.

    Dumps that were written before the latest ones, of other things, count as none; and
    so do those of ranks that there are no more.
    """
    written = [trace for trace in traces.values() if trace.size > 0]
    if not written:
        return "No rank has written a dump."
    latest = max(written, key=lambda trace: trace.time)
    size = latest.size
    of_now = {
        trace.rank: trace
        for trace in written
        if trace.rank < size and not _is_past(trace, latest)
    }
    sentence = "; ".join(_clauses(of_now, traces, size))
    if not sentence:
        return f"No rank waits for another. They wrote because of: {latest.why}"
    return f"{sentence[0].upper()}{sentence[1:]}."


def _is_past(trace: Trace, latest: Trace) -> bool:
    # Who is lost has not written of its own loss.
    lost = f"rank {trace.rank} (" in latest.why and trace.time < latest.time
    return lost or trace.time < latest.time - _SAME_S


def describe(collective: Mapping[str, Any]) -> str:
    """Such as "allreduce 'loss' of step 41"."""
    step = f" of step {collective['step']}" if collective["step"] else ""
    return f"{collective['kind']} '{collective['name']}'{step}"


def held_up_in(trace: Trace) -> dict[str, Any] | None:
    """The collective that the rank has waited in for longest."""
    pending = [one for one in trace.pending if one.get("missing")] or trace.pending
    return min(
        pending,
        key=lambda one: one["arrived_at"] or one["submitted_at"] or float("inf"),
        default=None,
    )


def _clauses(
    traces: Mapping[int, Trace], all_traces: Mapping[int, Trace], size: int
) -> list[str]:
    """First those who hold others up."""
    waiting: dict[str, list[int]] = {}
    missing: set[int] = set()
    for rank, trace in traces.items():
        held_up = held_up_in(trace)
        if held_up is not None:
            waiting.setdefault(_where(held_up, trace), []).append(rank)
            missing.update(held_up.get("missing", ()))
    silent = [rank for rank in range(size) if rank not in traces]
    once = [rank for rank in silent if rank in all_traces and all_traces[rank].size]
    never = [rank for rank in silent if rank not in once]
    clauses = [_silent_clause(never, "wrote nothing", traces)] if never else []
    if once:
        what = "an earlier dump" if len(once) == 1 else "earlier dumps"
        clauses.append(_silent_clause(once, f"wrote only {what}", traces))
    for rank, trace in traces.items():
        if held_up_in(trace) is None and (rank in missing or not waiting):
            frame = users_frame(trace.stacks, trace.main_thread)
            place = f"stands in {frame}" if frame else "is in no collective"
            if frame or rank in missing:
                clauses.append(f"rank {rank} {place}")
    # The fewest first: they are the ones that differ.
    for collective, ranks in sorted(waiting.items(), key=lambda item: len(item[1])):
        clauses.append(f"{_are(ranks)} in {collective}")
    return clauses


def _where(collective: Mapping[str, Any], trace: Trace) -> str:
    after = f" after step {trace.step}" if trace.step and not collective["step"] else ""
    return describe(collective) + after


def _silent_clause(ranks: Sequence[int], what: str, traces: Mapping[int, Trace]) -> str:
    lost = [
        trace.why
        for trace in traces.values()
        for rank in ranks
        if f"rank {rank} (" in trace.why
    ]
    because = f" ({lost[0]})" if lost else ": stopped, dead, or on another file system"
    return f"{_names(ranks)} {what}{because}"


def _are(ranks: Sequence[int]) -> str:
    return f"{_names(ranks)} {'is' if len(ranks) == 1 else 'are'}"


def _names(ranks: Sequence[int]) -> str:
    numbers = [str(rank) for rank in ranks]
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    return f"ranks {', '.join(numbers[:-1])} and {numbers[-1]}"
