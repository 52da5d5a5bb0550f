"""What the page shows of a run, as plain values for JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ring_keras.monitoring.history import History
from ring_keras.monitoring.rows import Update
from ring_keras.monitoring.sentences import headline, sentence_of
from ring_keras.monitoring.stragglers import find_stragglers
from ring_keras.tensorboard.reader import Run

__all__ = ["HEAT_MAPS", "heat_map_view", "losses_view", "overview_view", "step_view"]

# A screen has no more columns to tell apart.
_MOST_COLUMNS = 200

HEAT_MAPS = ("duration", "compute", "input", "wait", "exposed", "waited_for")


def overview_view(run: Run) -> dict[str, Any]:
    """Everything but the heat map and single steps."""
    history = History.of(run.updates)
    stragglers = find_stragglers(history)
    return {
        "headline": headline(history, stragglers),
        "ranks": list(history.ranks),
        "hosts": list(history.hosts),
        "stragglers": [
            {**dataclasses.asdict(one), "sentence": sentence_of(one)}
            for one in stragglers
        ],
        "means": _means(run.updates),
        "by_rank": _by_rank(history),
        "collectives": run.totals.get("collectives", []),
        "buckets": run.totals.get("buckets", []),
        "events": list(run.events),
        "steps": sorted(run.steps),
    }


def heat_map_view(run: Run, name: str) -> dict[str, Any]:
    """One of HEAT_MAPS: a line for each rank, seconds a step."""
    history = History.of(merged(run.updates, _MOST_COLUMNS))
    return {
        "ranks": list(history.ranks),
        "hosts": list(history.hosts),
        "steps": list(history.steps),
        "seconds": _plain(getattr(history, name).T),
    }


def step_view(run: Run, step: int) -> dict[str, Any]:
    """What each rank says of a step; no ranks if it was not recorded."""
    return {"step": step, "ranks": run.steps.get(step, [])}


def merged(updates: Sequence[Update], most: int) -> list[Update]:
    """At most so many, each of as many neighbours."""
    found = []
    for part in np.array_split(np.arange(len(updates)), min(most, len(updates)) or 1):
        if len(part):
            whole = updates[part[0]]
            for index in part[1:]:
                whole = whole.plus(updates[index])
            found.append(whole)
    return found


def _means(updates: Sequence[Update]) -> dict[str, Any]:
    """Over the ranks, seconds a step, for each of a screen's columns."""
    updates = merged(updates, _MOST_COLUMNS)
    history = History.of(updates)
    if not updates:
        return {"steps": [], "times": []}
    means = {
        name: _plain(np.nanmean(getattr(history, name), axis=1))
        for name in ("duration", "compute", "input", "wait", "exposed")
    }
    rates = np.array([sum(row.examples_per_s for row in u.rows) for u in updates])
    efficiency = np.nanmean(history.compute, axis=1) / np.nanmean(
        history.duration, axis=1
    )
    return {
        **means,
        "steps": list(history.steps),
        "times": [update.time for update in updates],
        "efficiency": _plain(efficiency),
        "examples_per_s": _plain(rates) if rates.any() else [],
    }


def _by_rank(history: History) -> list[dict[str, Any]]:
    """What each rank took lately, seconds a step."""
    names = ("duration", "compute", "input", "wait", "exposed", "waited_for")
    recent = {name: getattr(history, name)[-20:] for name in names}
    found = []
    for index, rank in enumerate(history.ranks):
        values = {
            name: _plain(np.nanmean(table[:, index]))
            for name, table in recent.items()
            if not np.isnan(table[:, index]).all()
        }
        found.append({"rank": rank, "host": history.hosts[index], **values})
    return found


def _plain(values: NDArray[np.float64] | np.float64) -> Any:
    """Six digits, and None for what is not a number, which JSON does not have."""
    array = np.asarray(values)
    if array.ndim:
        return [_plain(value) for value in array]
    number = float(array)
    return float(f"{number:.6g}") if np.isfinite(number) else None


def losses_view(
    losses: Mapping[str, Iterable[tuple[float, float]]],
) -> dict[str, Any]:
    """Curves, by tag."""
    return {
        tag: {
            "times": [time for time, _ in points],
            "values": [_plain(np.float64(value)) for _, value in points],
        }
        for tag, points in losses.items()
    }
