"""Ranks count by their examples in the averages of a process set, too."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import training
from support.run_ranks import run_ranks
from support.sharded_models import initialized

import ring_keras as ring

COUNTS = [2, 6]


def update(rows: slice, make_tape: Any, optimizer: Any, **of_step: Any) -> list[Any]:
    """The weights after an update by these examples."""
    x, y = training.arrays()
    batch = tf.constant(x[rows]), tf.constant(y[rows])
    model = training.build(1)
    optimizer.build(model.trainable_variables)
    with ring.data.weighted_step(batch, **of_step) as ((inputs, targets), _):
        with make_tape() as tape:
            loss = keras.losses.MeanSquaredError()(targets, model(inputs))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
    return model.get_weights()


def sgd() -> keras.optimizers.Optimizer:
    return keras.optimizers.SGD(1.0)


def worker(by_tape: bool, step_knows: bool) -> None:
    pair = ring.add_process_set([0, 1])
    if ring.rank() == 2:
        ring.barrier()
        return
    begin = sum(COUNTS[: ring.rank()])
    rows = slice(begin, begin + COUNTS[ring.rank()])
    of_step = {"process_set": pair} if step_knows else {}
    if by_tape:
        tape = ring.DistributedGradientTape
        weights = update(
            rows, lambda: tape(tf.GradientTape(), process_set=pair), sgd(), **of_step
        )
    else:
        optimizer = ring.DistributedOptimizer(sgd(), process_set=pair)
        weights = update(rows, tf.GradientTape, optimizer, **of_step)
    expected = update(slice(0, sum(COUNTS)), tf.GradientTape, sgd())
    for ours, theirs in zip(weights, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
    ring.barrier()


@pytest.mark.parametrize("by_tape", [False, True])
@pytest.mark.parametrize("step_knows", [False, True])
def test_examples_count_alike_in_a_set(by_tape: bool, step_knows: bool) -> None:
    run_ranks(initialized, 3, args=(worker, by_tape, step_knows), timeout_s=120)
