"""Weights that a program sets after a `fit` that was left between two meetings."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from support import training
from support.far_apart import rank_dataset

import ring_keras as ring

SYNC_EVERY = 4


class Leaves(keras.callbacks.Callback):
    """Before any meeting, so that the outer optimizer has kept nothing."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == 1:
            raise RuntimeError("left")


def compiled(options: dict[str, Any]) -> keras.Model:
    optimizer = ring.DiLoCo(keras.optimizers.SGD(0.1), sync_every=SYNC_EVERY, **options)
    return training.compile_model(training.build(1), optimizer)


def worker(options: dict[str, Any], everywhere: bool) -> None:
    model = compiled(options)
    others = [2 * weight + 0.5 for weight in model.get_weights()]
    data = rank_dataset(2 * SYNC_EVERY)
    with pytest.raises(RuntimeError, match="left"):
        model.fit(data, verbose=0, callbacks=[Leaves()])
    if everywhere or ring.rank() == 0:
        model.set_weights(others)
    model.fit(data, verbose=0)

    fresh = compiled(options)
    fresh.set_weights(others)
    fresh.fit(data, verbose=0)
    for ours, theirs in zip(model.get_weights(), fresh.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("options", "everywhere"),
    [
        ({}, True),
        pytest.param({"wire": "int8"}, False, marks=pytest.mark.slow),
        pytest.param({"overlap_steps": 1}, True, marks=pytest.mark.slow),
    ],
)
def test_weights_that_are_set_are_those_of_a_meeting(
    rank_pool: Any, options: dict[str, Any], everywhere: bool
) -> None:
    """They are no change of what has been trained before, which a meeting averages."""
    rank_pool(2).run(worker, args=(options, everywhere))
