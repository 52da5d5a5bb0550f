"""Ranks that train apart in loops of their own, of which some run out of data."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf
from support import training
from support.far_apart import INNER, batches_of, step_of
from support.run_ranks import run_ranks
from support.sharded_models import initialized

import ring_keras as ring

SYNC_EVERY = 2
SLOW = pytest.mark.slow


def join_worker(
    steps: list[int], options: dict[str, Any], in_function: bool, meets: bool = False
) -> tuple[str, Any]:
    """The error of this rank's loop, and its weights; after a meeting if it `meets`."""
    model = training.build(1)
    model.optimizer = ring.DiLoCo(INNER["sgd"](), sync_every=SYNC_EVERY, **options)
    step, error = step_of(model), ""
    if in_function:
        model.optimizer.build(model.trainable_variables)
        step = tf.function(step, reduce_retracing=True)
    for x, y in batches_of(ring.rank(), ring.size(), max(steps))[: steps[ring.rank()]]:
        try:
            step(x, y)
        except Exception as caught:
            error = str(caught)
            break
    assert ring.join() >= 0
    if meets:
        model.optimizer.meet()
    return error, training.as_bytes(model.weights)


@pytest.mark.parametrize(
    ("options", "in_function"),
    [
        ({}, True),
        ({"overlap_steps": 1}, True),
        ({"wire": "int8"}, False),
        pytest.param({}, False, marks=SLOW),
        pytest.param({"fragments": 2}, True, marks=SLOW),
        pytest.param({"apart": "hosts"}, False, marks=SLOW),
        pytest.param({"wire": "top-k"}, True, marks=SLOW),
        pytest.param({"wire": "int8", "overlap_steps": 1}, False, marks=SLOW),
    ],
)
def test_no_rank_meets_others_without_one_that_has_joined(
    options: dict[str, Any], in_function: bool
) -> None:
    """It would keep other weights for good, of which nobody would hear."""
    worker = (join_worker, [5, 1], options, in_function)
    (error, _), (others, _) = run_ranks(initialized, 2, args=worker, timeout_s=120)

    assert "[RK358] rank 1 has run out of data" in error, error
    assert "sync_every" in error and "ring_keras.data.join" in error
    assert not others


def test_a_rank_without_any_batch_is_named() -> None:
    worker = (join_worker, [3, 0], {}, False)
    (error, _), _ = run_ranks(initialized, 2, args=worker, timeout_s=120)

    assert error.startswith("[RK358] rank 1 has run out of data"), error


def test_ranks_that_join_between_two_meetings_meet_afterwards() -> None:
    worker = (join_worker, [3, 2], {}, True, True)
    results = run_ranks(initialized, 2, args=worker, timeout_s=120)

    assert [error for error, _ in results] == ["", ""]
    assert results[0][1] == results[1][1]
