"""In one sentence, why a job stands still."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ring_keras.monitoring.analyze.stacks import users_frame
from ring_keras.monitoring.analyze.trace_file import Trace

__all__ = ["describe", "explain", "held_up_in"]


def explain(traces: Mapping[int, Trace]) -> str:
    """Says what the ranks wait for, and where those stand that hold them up."""
    written = {rank: trace for rank, trace in traces.items() if trace.size > 0}
    if not written:
        return "No rank has written a dump."
    size = max(trace.size for trace in written.values())
    sentence = "; ".join(_clauses(written, size))
    if not sentence:
        why = next(iter(written.values())).why
        return f"No rank waits for another. They wrote because of: {why}"
    return f"{sentence[0].upper()}{sentence[1:]}."


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


def _clauses(traces: Mapping[int, Trace], size: int) -> list[str]:
    """First those who hold others up."""
    waiting: dict[str, list[int]] = {}
    missing: set[int] = set()
    for rank, trace in traces.items():
        held_up = held_up_in(trace)
        if held_up is not None:
            waiting.setdefault(describe(held_up), []).append(rank)
            missing.update(held_up.get("missing", ()))
    silent = [rank for rank in range(size) if rank not in traces]
    clauses = [_silent_clause(silent, traces)] if silent else []
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


def _silent_clause(ranks: Sequence[int], traces: Mapping[int, Trace]) -> str:
    lost = [
        trace.why
        for trace in traces.values()
        for rank in ranks
        if f"rank {rank} (" in trace.why
    ]
    because = f" ({lost[0]})" if lost else ": stopped, dead, or on another file system"
    return f"{_names(ranks)} wrote nothing{because}"


def _are(ranks: Sequence[int]) -> str:
    return f"{_names(ranks)} {'is' if len(ranks) == 1 else 'are'}"


def _names(ranks: Sequence[int]) -> str:
    numbers = [str(rank) for rank in ranks]
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    return f"ranks {', '.join(numbers[:-1])} and {numbers[-1]}"
