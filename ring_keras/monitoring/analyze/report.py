"""What each rank was doing."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from ring_keras.monitoring.analyze.stacks import Stack, users_frame
from ring_keras.monitoring.analyze.trace_file import Trace
from ring_keras.monitoring.analyze.verdict import describe

__all__ = ["describe_ranks"]

_MAX_FRAMES = 12


def describe_ranks(traces: Mapping[int, Trace], last: int) -> str:
    """A block for each: its last collectives, those under way, where it stands."""
    return "\n\n".join("\n".join(_describe(t, last)) for t in traces.values())


def _describe(trace: Trace, last: int) -> Iterator[str]:
    if trace.size == 0:
        yield f"rank {trace.rank}: wrote nothing"
        return
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(trace.time))
    yield f"{trace.who}, step {trace.step}, at {at}, because of: {trace.why}"
    for one in trace.ended[-last:] if last > 0 else []:
        yield f"  {_clock(one['done_at'])}  {one['outcome']:8}  {describe(one)}"
    for one in trace.pending:
        since = _clock(one["arrived_at"] or one["submitted_at"])
        missing = ", ".join(map(str, one.get("missing", ()))) or "none"
        yield f"  {since}  pending   {describe(one)}; missing ranks: {missing}"
    if trace.lock_held:
        yield "  no thread gave Python's lock back: one is in code that keeps it"
    frame = users_frame(trace.stacks, trace.main_thread)
    if frame is not None:
        yield f"  stands in {frame.file}:{frame.line} ({frame.function})"
    for stack in trace.stacks:
        if stack.thread == trace.main_thread:
            yield from _stack(stack)


def _stack(stack: Stack) -> Iterator[str]:
    yield "  main thread, innermost first:"
    for frame in stack.frames[:_MAX_FRAMES]:
        yield f"    {frame.file}:{frame.line} ({frame.function})"


def _clock(moment: Any) -> str:
    if moment is None:
        return " " * 15
    local = time.strftime("%H:%M:%S", time.localtime(moment))
    return f"{local}.{int(moment * 1e6) % 1_000_000:06d}"
