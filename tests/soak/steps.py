"""Trains for long, and says whether a rank holds more and more.

`ringrun -np 2 python tests/soak/steps.py [STEPS] [NAMES]`, or `make soak-steps`: STEPS
steps of a small model by `fit`, then NAMES collectives of arrays with names and shapes
of their own. Ends with code 1 if a rank's memory, descriptors or threads have
grown since a tenth of either was done.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import ring_keras as ring
from ring_keras import _native

PARTS = 10
# What an allocator may keep, and lay out in another way.
MOST_GROWTH_MB = 16.0


def held() -> tuple[float, int, int]:
    """Megabytes of memory, descriptors and threads of this process."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    threads = len(list(Path("/proc/self/task").iterdir()))
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6, descriptors, threads


def watched(title: str, part: Callable[[], None], steps: int) -> bool:
    """Runs the parts; whether nothing has grown."""
    seen = []
    for number in range(1, PARTS + 1):
        part()
        seen.append(held())
        memory, descriptors, threads = seen[-1]
        if ring.rank() == 0:
            print(
                f"{title}: {number * steps // PARTS} steps: {memory:.1f} MB, "
                f"{descriptors} descriptors, {threads} threads",
                flush=True,
            )
    (first_mb, *first), (last_mb, *last) = seen[0], seen[-1]
    fewer = all(now <= then for now, then in zip(last, first, strict=True))
    return last_mb - first_mb < MOST_GROWTH_MB and fewer


def fit(steps: int) -> bool:
    """A small model, and always the same collectives."""
    model = keras.Sequential(
        [keras.Input((16,)), keras.layers.Dense(16), keras.layers.Dense(1)]
    )
    model.compile(ring.DistributedOptimizer(keras.optimizers.Adam()), "mse")
    x = np.ones((64, 16), np.float32)
    data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(4).repeat()
    callbacks: list[Any] = [
        ring.callbacks.BroadcastGlobalVariables(),
        ring.callbacks.MetricAverage(),
    ]

    def part() -> None:
        model.fit(
            data,
            steps_per_epoch=steps // PARTS,
            verbose=0,
            callbacks=callbacks,
        )

    return watched("fit", part, steps)


def names(steps: int) -> bool:
    """Collectives that come once, and never again."""
    count = 0

    def part() -> None:
        nonlocal count
        for _ in range(steps // PARTS):
            count += 1
            # By the engine alone: see docs/design/0017 for what TensorFlow keeps.
            array = np.ones([count % 977 + 1, count % 13 + 1], np.float32)
            total = _native.allreduce(array, "sum", f"step{count}")
            assert float(total[-1, -1]) == ring.size()

    return watched("new names and shapes", part, steps)


def main(steps: int, names_count: int) -> int:
    """Both."""
    ring.init()
    flat = [fit(steps), names(names_count)]
    return 0 if all(flat) else 1


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:]]
    sys.exit(main(*(numbers + [100_000, 10_000][len(numbers) :])))
