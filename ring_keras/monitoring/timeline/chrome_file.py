"""A timeline as Chrome's JSON, which more programs read than Perfetto's format."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ring_keras.monitoring.timeline.merged import RankTimeline, Slice, slices, tracks

__all__ = ["write_chrome"]


def write_chrome(path: Path, ranks: Sequence[RankTimeline]) -> None:
    """Writes all ranks, each as a process."""
    events = list(_events(ranks))
    path.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))


def _events(ranks: Sequence[RankTimeline]) -> Iterator[dict[str, Any]]:
    flows: dict[Any, int] = {}
    on_the_way: dict[int, list[tuple[float, int, int]]] = {}
    for rank in ranks:
        names = {"name": "process_name", "args": {"name": rank.title}}
        yield {"ph": "M", "pid": rank.rank, "tid": 0, **names}
        for track, found in enumerate(tracks(slices(rank, flows))):
            for one in found:
                yield _complete(one, rank.rank, track)
                for part in one.parts:
                    yield _complete(part, rank.rank, track)
                came = (one.begin, rank.rank, track)
                on_the_way.setdefault(one.flow, []).append(came)
    for flow, stops in on_the_way.items():
        yield from _arrows(flow, sorted(stops))


def _arrows(
    flow: int, stops: Sequence[tuple[float, int, int]]
) -> Iterator[dict[str, Any]]:
    """From the first rank that came to the last; they must not go back in time."""
    last = len(stops) - 1
    for number, (at, rank, track) in enumerate(stops if last else ()):
        phase = "s" if number == 0 else "f" if number == last else "t"
        yield {
            **{"ph": phase, "name": "arrivals", "cat": "flow", "id": flow},
            **{"pid": rank, "tid": track, "ts": at * 1e6},
            **({"bp": "e"} if phase == "f" else {}),  # Binds to what begins there.
        }


def _complete(one: Slice, rank: int, track: int) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": one.name,
        "cat": "collective",
        "pid": rank,
        "tid": track,
        "ts": one.begin * 1e6,
        "dur": (one.end - one.begin) * 1e6,
        "args": one.arguments,
    }
