"""`SwapEMAWeights` where each rank has some of the averages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from support import training
from support.sharded_models import (
    STEPS,
    adamw_without_biases,
    build,
    needs_several,
    several,
    values,
)

import ring_keras as ring
from ring_keras import _libraries

AVERAGING = {"use_ema": True, "ema_momentum": 0.5}
optimizers = keras.optimizers
MAKERS = {
    "clipnorm": lambda: adamw_without_biases(clipnorm=0.05, **AVERAGING),
    "accumulation": lambda: optimizers.SGD(
        0.1, momentum=0.9, gradient_accumulation_steps=2, **AVERAGING
    ),
    "overwriting": lambda: optimizers.Lamb(
        0.01, ema_overwrite_frequency=5, global_clipnorm=0.5, **AVERAGING
    ),
    "loss_scaled": lambda: optimizers.LossScaleOptimizer(
        optimizers.Adam(0.01, **AVERAGING), initial_scale=8.0, dynamic_growth_steps=2
    ),
    "several": lambda: several(
        optimizers.Adam(0.01), adamw_without_biases(**AVERAGING)
    ),
}


def train(
    name: str, shard_state: bool, swap_on_epoch: bool, path: str, **options: Any
) -> list[Any]:
    """All that comes out of it: metrics, weights, state, and what the files have."""
    model = build(1 + ring.rank())
    optimizer = ring.DistributedOptimizer(MAKERS[name](), shard_state=shard_state)
    training.compile_model(model, optimizer, **options)
    data = training.dataset(training.steps_of(STEPS, ring.size()))
    mine = ring.data.shard(data, remainder="keep")
    swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=swap_on_epoch)
    files = f"{path}/{name}-{shard_state}"
    history = training.fit(
        model,
        mine,
        training.BATCH,
        epochs=2,
        validation_data=ring.data.shard(training.dataset(32)).batch(8),
        callbacks=[swap, keras.callbacks.ModelCheckpoint(f"{files}-{{epoch}}.keras")],
    )
    found = [history, [weight.tobytes() for weight in model.get_weights()]]
    metrics = model.evaluate(
        ring.data.shard(training.dataset(32)).batch(8),
        callbacks=[keras.callbacks.SwapEMAWeights()],
        verbose=0,
    )
    found += [metrics, [weight.tobytes() for weight in model.get_weights()]]
    ring.barrier(name="saved")
    for epoch in (1, 2):
        saved = keras.models.load_model(f"{files}-{epoch}.keras")
        found.append([weight.tobytes() for weight in saved.get_weights()])
        found.append(values(saved.optimizer))
    if shard_state:
        model.save(f"{files}-end.keras")
        model = keras.models.load_model(f"{files}-end.keras")
    return [*found, values(model.optimizer)]


def compare_worker(
    names: list[str], swap_on_epoch: bool, path: str, options: dict[str, Any]
) -> None:
    for name in names:
        whole, sharded = (
            train(name, shard_state, swap_on_epoch, path, **options)
            for shard_state in (False, True)
        )
        for place, (ours, theirs) in enumerate(zip(sharded, whole, strict=True)):
            assert ours == theirs, (name, place)
        everyones = ring.allgather_object(sharded[1])
        assert all(weights == everyones[0] for weights in everyones)
        with_averages = sharded[4] != sharded[6]
        assert with_averages


@pytest.mark.parametrize(
    ("size", "names", "swap_on_epoch", "options"),
    [
        (2, ["clipnorm"], False, {}),
        pytest.param(
            3,
            ["clipnorm", "accumulation", "overwriting", "loss_scaled"],
            True,
            {},
            marks=pytest.mark.slow,
        ),
        pytest.param(2, ["several"], True, {}, marks=[pytest.mark.slow, needs_several]),
        pytest.param(
            2, ["accumulation"], False, {"jit_compile": True}, marks=pytest.mark.slow
        ),
    ],
)
def test_averages_are_swapped_as_without_a_divided_state(
    rank_pool: Any,
    tmp_path: Path,
    size: int,
    names: list[str],
    swap_on_epoch: bool,
    options: dict[str, Any],
) -> None:
    if options and not _libraries.has_xla_kernels():
        pytest.skip("needs TensorFlow 2.20 or newer")
    args = (names, swap_on_epoch, str(tmp_path), options)
    rank_pool(size).run(compare_worker, args=args, timeout_s=240)


def differing_worker() -> None:
    model = build(1)
    optimizer = ring.DistributedOptimizer(MAKERS["clipnorm"](), shard_state=True)
    training.compile_model(model, optimizer)
    data = ring.data.shard(training.dataset(16))
    own = training.dataset(8).batch(4) if ring.rank() == 0 else None
    callbacks = [keras.callbacks.SwapEMAWeights()]
    for options in (
        {"callbacks": callbacks, "validation_data": own},
        {"callbacks": callbacks if ring.rank() == 0 else []},
        {"callbacks": [keras.callbacks.SwapEMAWeights(ring.rank() == 0)]},
    ):
        before = [np.array(weight) for weight in model.get_weights()]
        with pytest.raises(ring.RankMismatchError, match=r"\[RK833\]"):
            training.fit(model, data, training.BATCH, **options)
        assert all(map(np.array_equal, before, model.get_weights()))
    assert ring.allgather_object(1) == [1] * ring.size()


def test_ranks_that_would_not_swap_together_are_told(rank_pool: Any) -> None:
    rank_pool(2).run(differing_worker, timeout_s=60)


def alone_worker() -> str:
    model = build(1)
    optimizer = ring.DistributedOptimizer(MAKERS["clipnorm"](), shard_state=True)
    training.compile_model(model, optimizer)
    training.fit(model, ring.data.shard(training.dataset(16)), training.BATCH)
    before = [weight.tobytes() for weight in model.get_weights()]
    caught = ""
    if ring.rank() == 0:
        x, y = training.arrays()
        callbacks = [keras.callbacks.SwapEMAWeights()]
        with pytest.raises(ring.CollectiveTimeoutError, match=r"\[RK684\]") as error:
            model.evaluate(x[:8], y[:8], callbacks=callbacks, verbose=0)
        caught = str(error.value)
    assert before == [weight.tobytes() for weight in model.get_weights()]
    return caught


@pytest.mark.slow
def test_one_rank_alone_is_told_that_all_swap(rank_pool: Any) -> None:
    pool = rank_pool(2, env={"RING_KERAS_COLLECTIVE_TIMEOUT_S": "15"})
    first, _ = pool.run(alone_worker)

    assert "on every rank, without `if ring.rank() == 0:`" in first


def freezing_worker() -> None:
    """Keras takes averages by their order, so alone it gives others' here."""
    model = build(1)
    optimizer = ring.DistributedOptimizer(
        keras.optimizers.Adam(0.01, **AVERAGING), shard_state=True
    )
    data = ring.data.shard(training.dataset(64)).batch(training.BATCH)
    training.compile_model(model, optimizer)
    model.fit(data, verbose=0)
    frozen = model.layers[0]
    before = frozen.get_weights()
    frozen.trainable = False
    training.compile_model(model, optimizer)
    swap = keras.callbacks.SwapEMAWeights()  # Takes each weight's own.
    swap.set_model(model)
    expected = []

    class Look(keras.callbacks.Callback):
        def on_train_end(self, logs: Any = None) -> None:
            swap.on_test_begin()
            expected.extend(v.numpy() for v in model.trainable_variables)
            swap.on_test_end()

    model.fit(data, verbose=0, callbacks=[Look()])

    for found, average in zip(model.trainable_variables, expected, strict=True):
        np.testing.assert_array_equal(found, average)
    for found, value in zip(frozen.get_weights(), before, strict=True):
        np.testing.assert_array_equal(found, value)
    everyones = ring.allgather_object(training.as_bytes(model.weights))
    assert all(weights == everyones[0] for weights in everyones)


def test_each_weight_gets_its_own_average_where_others_are_frozen(
    rank_pool: Any,
) -> None:
    rank_pool(2).run(freezing_worker)
