"""TensorFlow's profiler shows collectives."""

from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow as tf
from support.rank_pool import RankPools

import ring_keras as ring


def profiled(directory: str, jit_compile: bool) -> bytes:
    own = Path(directory, str(ring.rank()))

    @tf.function(jit_compile=jit_compile)
    def reduce(tensor: tf.Tensor) -> tf.Tensor:
        return ring.allreduce(tensor, name=f"profiled/{jit_compile}")

    tensor = tf.ones(1000)
    reduce(tensor)  # Traced before.
    tf.profiler.experimental.start(str(own))
    reduce(tensor)
    tf.profiler.experimental.stop()
    return b"".join(path.read_bytes() for path in own.rglob("*.xplane.pb"))


@pytest.mark.parametrize(
    "jit_compile",
    [False, pytest.param(True, marks=pytest.mark.slow)],
    ids=["graph", "xla"],
)
def test_names_and_bytes_are_there(
    rank_pool: RankPools, tmp_path: Path, jit_compile: bool
) -> None:
    for profile in rank_pool(2).run(profiled, args=(str(tmp_path), jit_compile)):
        assert f"allreduce 'profiled/{jit_compile}'".encode() in profile
        assert b"bytes" in profile
