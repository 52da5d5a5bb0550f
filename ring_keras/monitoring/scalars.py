"""TensorBoard's scalars of an update."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ring_keras.monitoring.rows import Row, Update

__all__ = ["scalars_of"]


def scalars_of(update: Update, buckets: Sequence[dict[str, Any]]) -> dict[str, float]:
    """By their tags: means over the ranks, seconds and bytes a step.

    Args:
        update: With at least one step.
        buckets: With the `fill` of each, from 0 to 1, or None where it has no limit.
    """
    rows = [row for row in update.rows if row.steps]
    means = {
        f"ring/{name}": sum(getattr(row, name) / row.steps for row in rows) / len(rows)
        for name in (
            "duration_s",
            "compute_s",
            "input_s",
            "wait_s",
            "exposed_s",
            "overlap_s",
        )
    }
    scalars = {
        **means,
        "ring/bytes_per_step": sum(row.bytes / row.steps for row in rows) / len(rows),
        "ring/bus_bandwidth_bytes_per_s": _bus_bandwidth(rows),
        "ring/scaling_efficiency": means["ring/compute_s"] / means["ring/duration_s"]
        if means["ring/duration_s"]
        else 1.0,
    }
    rates = {row.rank: row.examples_per_s for row in rows}
    if any(rates.values()):
        scalars["ring/examples_per_s"] = sum(rates.values())
        for rank, rate in rates.items():
            scalars[f"ring/examples_per_s/rank_{rank}"] = rate
    fills = [bucket["fill"] for bucket in buckets if bucket["fill"] is not None]
    if fills:
        scalars["ring/bucket_fill"] = sum(fills) / len(fills)
    return scalars


def _bus_bandwidth(rows: Sequence[Row]) -> float:
    """What each link of a ring would carry, bytes/s: 2 (n - 1) / n of the bytes."""
    moving_s = sum(row.exposed_s + row.overlap_s for row in rows)
    if moving_s <= 0:
        return 0.0
    part = 2 * (len(rows) - 1) / len(rows)
    return part * sum(row.bytes for row in rows) / moving_s
