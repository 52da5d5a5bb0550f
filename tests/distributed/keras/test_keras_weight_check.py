"""RING_KERAS_CHECK_STEPS finds ranks whose weights are no longer equal."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from support import training
from support.run_ranks import run_ranks

import ring_keras as ring

ENV = {"RING_KERAS_CHECK_STEPS": "3"}


class Breaks(keras.callbacks.Callback):
    """A fault of one rank's memory, after a step."""

    def __init__(self, what: str, step: int) -> None:
        super().__init__()
        self._what = what
        self._left = step
        self.steps = 0

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        self.steps += 1
        self._left -= 1
        if self._left or ring.rank() != 1:
            return
        optimizer = self.model.optimizer
        variable = {
            "weight": self.model.trainable_variables[2],
            "average": next(v for v in optimizer.variables if "average" in v.name),
            "rate": optimizer.learning_rate,
        }[self._what]
        value = np.array(variable.numpy())
        bits = value.reshape(-1).view(np.uint32)
        bits[0] ^= 1 << 30
        variable.assign(value)


def train(what, step, options, epochs=2):
    keras.utils.set_random_seed(2)
    model = training.build(3)
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9, use_ema=True)
    model.compile(ring.DistributedOptimizer(optimizer), "mse", **options)
    breaks = Breaks(what, step)
    data = ring.data.shard(training.dataset(4 * 10 * ring.size())).batch(4)
    callbacks = [ring.callbacks.BroadcastGlobalVariables(), breaks]
    model.fit(data, epochs=epochs, verbose=0, shuffle=False, callbacks=callbacks)
    return model


def breaks_worker(what, step, options):
    with pytest.raises(ring.RankMismatchError) as caught:
        train(what, step, options)
    # The next call begins to count anew.
    train(what, 100, options, epochs=1)
    return str(caught.value)


@pytest.mark.parametrize(
    ("what", "step", "options", "found"),
    [
        ("weight", 4, {}, 6),
        pytest.param("average", 7, {}, 9, marks=pytest.mark.slow),
        # After the fourth execution.
        pytest.param(
            "rate",
            4,
            {"steps_per_execution": 2, "jit_compile": True},
            10,
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_differs_is_named(rank_pool, what, step, options, found):
    arguments = (what, step, options)
    first, second = rank_pool(2, env=ENV).run(breaks_worker, args=arguments)

    assert first == second
    assert f"fit(): {found} steps after its beginning, variable '" in first
    assert "ranks [0] have one value, ranks [1] another" in first
    assert ("average" in first.partition("differs")[0]) == (what == "average")


def sound_worker():
    keras.utils.set_random_seed(ring.rank())
    local = keras.layers.Dense(4, name="own")
    model = keras.Sequential(
        [
            keras.Input((6,)),
            local,
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(1),
        ]
    )
    optimizer = keras.optimizers.Adam(0.01, gradient_accumulation_steps=2, use_ema=True)
    model.compile(ring.DistributedOptimizer(optimizer, local_layers=[local]), "mse")
    data = ring.data.shard(training.dataset(4 * 10 * ring.size())).batch(4)
    callbacks = [ring.callbacks.BroadcastGlobalVariables()]
    history = model.fit(data, epochs=2, verbose=0, callbacks=callbacks)
    return len(history.epoch), local.kernel.numpy().tobytes()


@pytest.mark.slow
def test_what_is_each_ranks_own_is_not_compared(rank_pool):
    (epochs, first), (_, second) = rank_pool(2, env=ENV).run(sound_worker)

    assert epochs == 2
    assert first != second


def joins_worker():
    with pytest.raises(ring.RankMismatchError) as caught:
        ring.init()
    return str(caught.value)


def test_ranks_that_check_at_other_steps_do_not_join():
    env = [{"RING_KERAS_CHECK_STEPS": "3"}, {}]
    for outcome in run_ranks(joins_worker, 2, env=env):
        assert "RING_KERAS_CHECK_STEPS is 3 on rank 0 and 0 on rank 1" in outcome
