"""Barrier."""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf
from support import RankPool

import ring_keras as ring


def check_nobody_is_early(directory: str) -> None:
    size, rank = ring.size(), ring.rank()
    for turn in range(5):
        Path(directory, f"{turn}-{rank}").touch()
        ring.barrier()
        arrived = {path.name for path in Path(directory).iterdir()}
        assert {f"{turn}-{other}" for other in range(size)} <= arrived

    @tf.function
    def twice() -> None:
        ring.barrier()
        ring.barrier(name="second")

    twice()


def test_all_have_arrived_when_one_leaves(ranks: RankPool, tmp_path: Path) -> None:
    ranks.run(check_nobody_is_early, args=[str(tmp_path)])
