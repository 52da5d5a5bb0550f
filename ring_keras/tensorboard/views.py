"""What the page shows of a run, as plain values for JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ring_keras.monitoring.history import History
from ring_keras.monitoring.sentences import (
    headline,
    period,
    remedy,
    sentence_of,
    when,
    who,
)
from ring_keras.monitoring.stragglers import find_stragglers
from ring_keras.tensorboard.reader import Run

__all__ = ["HEAT_MAPS", "heat_map_view", "losses_view", "overview_view", "step_view"]

# A screen has no more columns to tell apart.
_MOST_COLUMNS = 200

# Updates that tell how it is now.
_RECENT = 20

HEAT_MAPS = ("duration", "compute", "input", "wait", "exposed", "waited_for")


def overview_view(run: Run) -> dict[str, Any]:
    """Everything but the heat map and single steps."""
    whole = History.of(run.updates)
    history = History.of(run.last_session)
    stragglers = find_stragglers(history)
    return {
        "headline": headline(history, stragglers),
        "ranks": list(whole.ranks),
        "hosts": list(whole.hosts),
        "stragglers": [
            {
                "who": who(one),
                "reason": one.reason,
                "pattern": one.pattern,
                "when": when(one),
                "lost_s": one.lost_s,
                "lost_in": period(one.lost_in),
                "remedy": remedy(one),
                "sentence": sentence_of(one),
            }
            for one in stragglers
        ],
        "means": _means(whole.thinned(_MOST_COLUMNS)),
        "by_rank": _by_rank(history),
        "by_rank_of": _recent_period(history),
        "collectives": run.totals.get("collectives", []),
        "buckets": run.totals.get("buckets", []),
        "events": list(run.events),
        "steps": sorted(run.steps),
    }


def heat_map_view(run: Run, name: str) -> dict[str, Any]:
    """One of HEAT_MAPS: a line for each rank, seconds a step."""
    history = History.of(run.updates).thinned(_MOST_COLUMNS)
    return {
        "ranks": list(history.ranks),
        "hosts": list(history.hosts),
        "steps": list(history.steps),
        "seconds": _plain(getattr(history, name).T),
    }


def step_view(run: Run, step: int) -> dict[str, Any]:
    """What each rank says of a step; no ranks if it was not recorded."""
    return {"step": step, "ranks": run.steps.get(step, [])}


def _means(history: History) -> dict[str, Any]:
    """Over the ranks, seconds a step, for each of a screen's columns."""
    if not history.steps:
        return {"steps": [], "times": []}
    means = {
        name: np.nanmean(getattr(history, name), axis=1)
        for name in ("duration", "compute", "input", "wait", "exposed")
    }
    rates = np.nansum(history.examples_per_s, axis=1)
    return {
        **{name: _plain(values) for name, values in means.items()},
        "steps": list(history.steps),
        "times": list(history.times),
        "efficiency": _plain(means["compute"] / means["duration"]),
        "examples_per_s": _plain(rates) if rates.any() else [],
    }


def _by_rank(history: History) -> list[dict[str, Any]]:
    """What each rank took lately, seconds a step."""
    found: list[dict[str, Any]] = [
        {"rank": rank, "host": host}
        for rank, host in zip(history.ranks, history.hosts, strict=True)
    ]
    for name in ("duration", "compute", "input", "wait", "exposed", "waited_for"):
        recent = getattr(history, name)[-_RECENT:]
        counts = (~np.isnan(recent)).sum(axis=0)
        means = _plain(np.nansum(recent, axis=0) / np.maximum(counts, 1))
        for index in np.flatnonzero(counts):
            found[index][name] = means[index]
    return found


def _recent_period(history: History) -> str:
    """The steps of `_by_rank`."""
    if not history.steps:
        return ""
    before = history.steps[-_RECENT - 1 : -_RECENT] or (history.begins_after,)
    return period((before[0] + 1, history.steps[-1]))


def _plain(values: NDArray[np.float64] | np.float64) -> Any:
    """Six digits, and None for what is not a number, which JSON does not have."""
    array = np.asarray(values, float)
    known = np.isfinite(array)
    # Of each number its own first six digits, without a turn of Python's for each.
    size = np.log10(np.abs(array), where=known & (array != 0), out=np.zeros_like(array))
    scale = 10.0 ** (5 - np.floor(size))
    plain = (np.round(np.where(known, array, 0.0) * scale) / scale).astype(object)
    plain[~known] = None
    return plain.tolist()


def losses_view(
    losses: Mapping[str, Iterable[tuple[float, float]]],
) -> dict[str, Any]:
    """Curves, by tag."""
    return {
        tag: {
            "times": [time for time, _ in points],
            "values": _plain(np.array([value for _, value in points])),
        }
        for tag, points in losses.items()
    }
