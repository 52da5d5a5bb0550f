"""Eager collectives whose names never come back leave no memory behind."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import tensorflow as tf

import ring_keras as ring
from ring_keras.ops import eager_kernels

LIMIT = 64


def held_mb() -> float:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def growth_with_new_names() -> float:
    def use(names: range) -> None:
        for name in names:
            ring.allreduce(tf.ones([4]), "sum", name=f"new{name}")

    names = eager_kernels.Names(LIMIT)
    of_process, eager_kernels.names_of_process = eager_kernels.names_of_process, names
    try:
        use(range(2 * LIMIT))
        before = held_mb()
        use(range(2 * LIMIT, 12 * LIMIT))
        return held_mb() - before
    finally:
        eager_kernels.names_of_process = of_process


def test_new_names_leave_nothing(rank_pool) -> None:
    (growth,) = rank_pool(1).run(growth_with_new_names)
    assert growth < 10  # TensorFlow's kernels alone would be 26.


def test_names_that_come_back_keep_their_kernels() -> None:
    names = eager_kernels.Names(LIMIT)
    often = [f"gradient{i}" for i in range(LIMIT + LIMIT // 2)]
    dropped = [names.note(name) for _ in range(5) for name in often]
    assert sum(dropped) == 1  # Before it could know.
    assert sum(names.note(f"once{i}") for i in range(10 * LIMIT)) >= 2
