"""A `MultiOptimizer` whose optimizers share weights in conditionals of equal shapes.

TensorFlow orders such conditionals by their variables alone, and so differently on each
rank. In one of many steps the ranks would take other variables' values.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from support.sharded_models import needs_several

import ring_keras as ring

pytestmark = needs_several

STEPS = 300
BATCH = 4
WIDTH = 16
OPTIONS: dict[str, dict[str, Any]] = {
    "averages": {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": 2},
    "accumulation": {"gradient_accumulation_steps": 2},
}


def fit(shard_state: bool, how: str, is_scaled: bool) -> list[Any]:
    keras.utils.set_random_seed(1)
    layers = [
        keras.layers.Dense(WIDTH, activation="tanh", use_bias=False, name=f"layer_{i}")
        for i in range(4)
    ]
    model = keras.Sequential([keras.Input((WIDTH,)), *layers])
    options = OPTIONS[how]
    several = keras.optimizers.MultiOptimizer(
        keras.optimizers.OptimizerMap(
            keras.optimizers.SGD(0.01, momentum=0.9, **options),
            {".*layer_[23].*": keras.optimizers.Adam(0.01, **options)},
        )
    )
    if is_scaled:
        several = keras.optimizers.LossScaleOptimizer(several, initial_scale=8.0)
    optimizer = ring.DistributedOptimizer(several, shard_state=shard_state)
    model.compile(optimizer, loss="mse")
    x = np.random.default_rng(ring.rank()).normal(size=(STEPS * BATCH, WIDTH))
    model.fit(x, np.tanh(x[:, ::-1]), batch_size=BATCH, shuffle=False, verbose=0)
    weights: list[Any] = model.get_weights()
    return weights


def compare_worker(how: str, is_scaled: bool) -> None:
    whole, divided = (fit(shards, how, is_scaled) for shards in (False, True))
    for one, other in zip(whole, divided, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("how", "is_scaled"),
    [
        ("averages", False),
        ("accumulation", False),
        pytest.param("averages", True, marks=pytest.mark.slow),
    ],
)
def test_weights_are_those_without_a_divided_state(
    rank_pool: Any, how: str, is_scaled: bool
) -> None:
    rank_pool(2).run(compare_worker, args=(how, is_scaled), timeout_s=240)
