"""Event files of runs that nobody ran: rows with known causes, through our writer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from ring_keras.callbacks.summary_file import SummaryFile
from ring_keras.monitoring import records
from ring_keras.monitoring.links import Link
from ring_keras.monitoring.rows import Row, Update
from ring_keras.monitoring.scalars import scalars_of

BEGAN_AT = 1_800_000_000.0
STEPS_PER_UPDATE = 10

# Of (rank, step): seconds of compute and of input.
Costs = Callable[[int, int], tuple[float, float]]


def even(rank: int, step: int) -> tuple[float, float]:
    return 0.050, 0.001


def slow_compute(rank: int, step: int) -> tuple[float, float]:
    return (0.070 if rank == 3 and step >= 1200 else 0.050), 0.001


def slow_input(rank: int, step: int) -> tuple[float, float]:
    return 0.050, (0.040 if rank == 1 and step >= 500 else 0.001)


def updates(
    costs: Costs,
    *,
    size: int = 4,
    count: int = 200,
    exposed_s: float = 0.004,
    links: Callable[[int, int], tuple[Link, ...]] = lambda rank, step: (),
) -> list[Update]:
    """As ranks would measure them that all wait for the slowest."""
    random = np.random.default_rng(1)
    found = []
    for number in range(1, count + 1):
        step = number * STEPS_PER_UPDATE
        own = np.array([costs(rank, step) for rank in range(size)])
        own *= random.uniform(0.99, 1.01, own.shape)
        busy = own.sum(axis=1)
        last = int(busy.argmax())
        n = STEPS_PER_UPDATE
        rows = []
        for rank in range(size):
            wait = float(busy[last] - busy[rank])
            rows.append(
                Row(
                    rank=rank,
                    host="ab"[rank * 2 // size],
                    steps=n,
                    duration_s=float(busy[last] + exposed_s) * n,
                    input_s=float(own[rank, 1]) * n,
                    compute_s=float(own[rank, 0]) * n,
                    wait_s=wait * n,
                    exposed_s=exposed_s * n,
                    overlap_s=0.01 * n,
                    bytes=4_000_000 * n,
                    collectives=3 * n,
                    examples=64 * n,
                    waited_for_s={} if rank == last else {last: wait * n},
                    links=links(rank, step),
                )
            )
        found.append(Update(step, BEGAN_AT + number * 0.6, tuple(rows)))
    return found


def steps_record(size: int, step: int) -> list[dict[str, Any]]:
    """A step with two buckets, in which rank 3 comes last."""
    return [
        {
            "rank": rank,
            "host": "ab"[rank * 2 // size],
            "step": step,
            "began_at": BEGAN_AT + rank * 1e-4,
            "duration_s": 0.075,
            "input_s": 0.001,
            "compute_s": 0.070 if rank == 3 else 0.050,
            "wait_s": 0.0 if rank == 3 else 0.020,
            "exposed_s": 0.004,
            "last_rank": None if rank == 3 else 3,
            "collectives": [
                {
                    "name": f"gradients/bucket{index}",
                    "bytes": 1 << (20 + index),
                    "last_rank": 3,
                    "at_s": [
                        (0.06 if rank == 3 else 0.04) + 0.01 * index,
                        0.0601 + 0.01 * index,
                        0.0602 + 0.01 * index,
                        0.063 + 0.01 * index,
                        0.064 + 0.01 * index,
                    ],
                }
                for index in range(2)
            ],
        }
        for rank in range(size)
    ]


TOTALS: dict[str, Any] = {
    "collectives": [
        {
            "kind": "allreduce",
            "algorithm": "",
            "size_class_bytes": 256,
            "count": 2000,
            "wait_s": 1.0,
            # Not timed.
            "transfer_s": 0.0,
            "best_bus_bandwidth": 0.0,
            "mean_bus_bandwidth": 0.0,
        }
    ]
    + [
        {
            "kind": "allreduce",
            "algorithm": algorithm,
            "size_class_bytes": 1 << power,
            "count": 2000,
            "wait_s": 1.0,
            "transfer_s": 2.0,
            "best_bus_bandwidth": 1e8 * power,
            "mean_bus_bandwidth": 0.7e8 * power,
        }
        for algorithm in ("shared_flat", "shared_parts")
        for power in range(10, 24, 2)
    ],
    "buckets": [
        {"name": "gradients/bucket0", "bytes": 1 << 20, "fill": 0.0625},
        {"name": "gradients/bucket1", "bytes": 15 << 20, "fill": 0.9375},
        {"name": "gradients/bucket2", "bytes": 3 << 20, "fill": None},
    ],
}


def write_run(
    directory: Path,
    series: list[Update],
    events: tuple[dict[str, Any], ...] = (),
    *,
    began_at: float = BEGAN_AT,
    size_of_steps: int | None = None,
    step: int = 7,
    totals: dict[str, Any] = TOTALS,
) -> Path:
    """Writes a session as the callback does; returns the folder of the run.

    Args:
        directory: Above that folder.
        series: At least one.
        events: Of the session.
        began_at: Its Unix time.
        size_of_steps: How many ranks its one step has; None for all.
        step: The number of that.
        totals: What was last said of bandwidths and buckets.
    """
    folder = directory / "train"
    writer = tf.summary.create_file_writer(str(folder))
    file = SummaryFile(writer)
    rows = records.Series(records.ROWS, began_at)
    steps = records.Series(records.STEPS, began_at)
    file.write(0, {}, {f"{records.PLUGIN}/{records.TOTALS}": totals})
    size = size_of_steps or len(series[0].rows)
    file.write(step, {}, {steps.next_tag(): steps_record(size, step)})
    if events:
        tag = records.Series(records.EVENTS, began_at).next_tag()
        file.write(0, {}, {tag: list(events)})
    for update in series:
        scalars = {**scalars_of(update, totals["buckets"]), "epoch_loss": 0.5}
        file.write(update.step, scalars, {rows.next_tag(): update.to_json()})
    writer.close()
    with tf.summary.create_file_writer(str(directory / "validation")).as_default():
        tf.summary.scalar("epoch_loss", 0.25, step=1)
    return folder
