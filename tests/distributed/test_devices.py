"""RING_KERAS_DEVICE on a machine without GPUs."""

from __future__ import annotations

import pytest
import tensorflow as tf
from support.run_ranks import run_ranks

import ring_keras as ring

no_gpu = pytest.mark.skipif(
    bool(tf.config.list_physical_devices("GPU")), reason="needs a machine without GPU"
)


def start():
    ring.init()
    return float(ring.allreduce(tf.ones([]), "sum"))


def test_ranks_that_ask_for_the_cpu_train_on_it():
    results = run_ranks(start, 2, env={"RING_KERAS_DEVICE": "cpu"})

    assert results == [2.0, 2.0]


@no_gpu
def test_a_gpu_that_is_not_there_is_the_same_error_on_every_rank():
    outcomes = run_ranks(start, 2, env={"RING_KERAS_DEVICE": "1"}, check=False)

    for outcome in outcomes:
        assert outcome.exception_type == "RingKerasError", outcome.describe()
        assert "rank 0 on host" in outcome.message
        assert "RING_KERAS_DEVICE=1, but TensorFlow lists no GPU" in outcome.message
