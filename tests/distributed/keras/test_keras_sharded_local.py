"""Divided state beside layers that each rank trains for itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from support import training
from support.log_texts import LogTexts
from support.sharded_models import require_own_part

import ring_keras as ring
from ring_keras.ops.shards import shard_of

STEPS = 6


def without_decay_of_biases(**options: Any) -> keras.optimizers.Optimizer:
    optimizer = keras.optimizers.AdamW(0.01, weight_decay=0.1, **options)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return optimizer


optimizers = keras.optimizers
MAKERS: dict[str, Callable[[], keras.optimizers.Optimizer]] = {
    "sgd": lambda: optimizers.SGD(0.1, momentum=0.9, clipnorm=0.05),
    "adamw": lambda: without_decay_of_biases(
        use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2
    ),
    "averages": lambda: optimizers.Adamax(0.01, use_ema=True, ema_momentum=0.5),
    "adafactor": lambda: optimizers.Adafactor(0.05),
    "accumulation": lambda: optimizers.Adam(
        0.01, gradient_accumulation_steps=2, clipvalue=0.01
    ),
    "loss_scaled": lambda: optimizers.LossScaleOptimizer(
        optimizers.Lamb(0.01), initial_scale=8.0, dynamic_growth_steps=2
    ),
    "loss_scaled_accumulation": lambda: optimizers.LossScaleOptimizer(
        optimizers.Nadam(0.01, gradient_accumulation_steps=2)
    ),
}


def with_own_head() -> tuple[keras.Model, keras.layers.Layer]:
    """A body that all ranks have, and a head of each."""
    keras.utils.set_random_seed(1 + ring.rank())
    head = keras.Sequential(
        [
            keras.layers.BatchNormalization(momentum=0.5),
            keras.layers.Dense(3, "tanh"),
            keras.layers.Dense(1, "sigmoid", dtype="float32"),
        ]
    )
    body = [keras.layers.Dense(8, "tanh"), keras.layers.Dense(5, "tanh")]
    return keras.Sequential([keras.Input((6,)), *body, head]), head


def compiled(name: str, shard_state: bool, **options: Any) -> keras.Model:
    model, head = with_own_head()
    optimizer = ring.DistributedOptimizer(
        MAKERS[name](), local_layers=head, shard_state=shard_state
    )
    return training.compile_model(model, optimizer, **options)


def fit(name: str, shard_state: bool, **options: Any) -> keras.Model:
    model = compiled(name, shard_state, **options)
    train(model)
    train(model)  # It begins with what all ranks have in common once more.
    return model


def train(model: keras.Model, **options: Any) -> None:
    data = training.dataset(training.steps_of(STEPS, ring.size()))
    mine = ring.data.shard(data, remainder="keep")
    training.fit(model, mine, training.BATCH, **options)


def values(variables: list[Any]) -> list[bytes]:
    return [np.asarray(variable).tobytes() for variable in variables]


def compare_worker(names: list[str], options: dict[str, Any]) -> dict[str, Any]:
    """The same on each rank with and without; returns what the ranks share."""
    result = {}
    for name in names:
        whole, sharded = (fit(name, divided, **options) for divided in (False, True))
        assert values(sharded.weights) == values(whole.weights), name
        # This rank's part, and all that is kept for its own layers.
        assert require_own_part(sharded.optimizer, whole.optimizer, name)
        result[name] = values(sharded.weights[:4]), values(sharded.weights[4:])
    return result


def require_common_bodies(results: list[dict[str, Any]]) -> None:
    for name, (body, head) in results[0].items():
        for other in results[1:]:
            assert other[name][0] == body, name
            assert other[name][1] != head, name


def test_own_layers_train_beside_a_divided_state(rank_pool):
    require_common_bodies(rank_pool(2).run(compare_worker, args=(["adamw"], {})))


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    "options", [{}, {"jit_compile": True}, {"run_eagerly": True}], ids=str
)
def test_ways_to_train_own_layers_beside_a_divided_state(rank_pool, size, options):
    names = list(MAKERS)
    if options:
        names = ["sgd", "accumulation"]
    require_common_bodies(rank_pool(size).run(compare_worker, args=(names, options)))


def files_worker(path: str, name: str) -> None:
    """A rank's file is what it saves without a divided state."""
    whole, sharded = (fit(name, shard_state) for shard_state in (False, True))
    own = f"{path}/{name}-{ring.rank()}.keras"
    sharded.save(own)

    plain = keras.models.load_model(own)
    assert values(plain.weights) == values(whole.weights)
    assert values(plain.optimizer.variables) == values(whole.optimizer.variables)

    again = compiled(name, True)
    again.optimizer.build(again.trainable_variables)
    again.load_weights(own)
    loaded = keras.models.load_model(own)
    ring.DistributedOptimizer(
        loaded.optimizer, local_layers=loaded.layers[-1], shard_state=True
    )
    for model in (again, loaded):
        found = values(model.optimizer.variables)
        assert found == values(sharded.optimizer.variables)
    for model in (whole, sharded, again, loaded):
        train(model)
        assert values(model.weights) == values(whole.weights)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["averages", "loss_scaled"])
def test_each_rank_saves_its_own_layers_with_the_whole_state(rank_pool, tmp_path, name):
    rank_pool(2).run(files_worker, args=(str(tmp_path), name))


def file_of_one_worker(path: str) -> list[str]:
    model = compiled("sgd", True)
    saver = keras.callbacks.ModelCheckpoint(f"{path}/model.weights.h5")
    saver.save_weights_only = True
    with LogTexts() as texts:
        train(model, callbacks=[saver])
    return [text for text in texts if "RK653" in text]


@pytest.mark.slow
def test_a_file_of_which_each_rank_has_another_is_told_of(rank_pool, tmp_path):
    found = rank_pool(2).run(file_of_one_worker, args=(str(tmp_path),))

    assert any("each rank trains its own" in text for texts in found for text in texts)


def freed_memory_worker() -> None:
    """Each rank has the state of its own layers, and a part of the rest."""
    model = compiled("sgd", True)
    model.optimizer.build(model.trainable_variables)
    own = {id(variable) for variable in model.layers[-1].trainable_variables}
    states = model.optimizer.variables[-len(model.trainable_variables) :]
    for variable, state in zip(model.trainable_variables, states, strict=True):
        assert (shard_of(state) is None) == (id(variable) in own)
        if id(variable) in own:
            assert tuple(state.shape) == tuple(variable.shape)
    # Which layers are local, the ranks may see differently; none of them goes on.
    model, head = with_own_head()
    local = head if ring.rank() == 0 else model.layers[:1]
    optimizer = ring.DistributedOptimizer(
        MAKERS["sgd"](), local_layers=local, shard_state=True
    )
    training.compile_model(model, optimizer)
    before = values(model.trainable_variables)
    with pytest.raises(ring.RingKerasError):
        train(model)
    assert ring.allgather_object(1) == [1] * ring.size()
    assert ring.rank() > 0 or values(model.trainable_variables) == before


def test_the_state_of_own_layers_is_not_divided(rank_pool):
    rank_pool(2).run(freed_memory_worker)
