"""A rank's process ends, whatever its datasets still do."""

from __future__ import annotations

import gc
import threading
import time
import types

import pytest
from support.run_ranks import run_ranks


def leave_a_generator_behind(how_long_s: float) -> None:
    import ring_keras as ring

    ring.init()
    import tensorflow as tf

    begun = threading.Event()

    def numbers():
        yield 0
        begun.set()
        time.sleep(how_long_s)
        yield 1

    dataset = tf.data.Dataset.from_generator(
        numbers, output_signature=tf.TensorSpec([], tf.int32)
    )
    iterator = iter(dataset.prefetch(1))
    assert int(next(iterator)) == 0
    assert begun.wait(30)
    # In a circle, which the interpreter collects when it ends, and not before.
    gc.set_threshold(1_000_000)
    circle = types.SimpleNamespace(iterator=iterator)
    circle.itself = circle


# A second is over while the interpreter waits for it; an hour is not.
@pytest.mark.parametrize("how_long_s", [1, pytest.param(3600, marks=pytest.mark.slow)])
def test_ends_while_a_generator_is_in_a_call(how_long_s) -> None:
    run_ranks(leave_a_generator_behind, 1, args=(how_long_s,), timeout_s=60)
