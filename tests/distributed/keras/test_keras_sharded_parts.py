"""Which part of a divided state each rank has."""

from __future__ import annotations

import copy
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import training
from support.run_ranks import run_ranks
from support.sharded_models import (
    MAKERS,
    STEPS,
    build,
    initialized,
    optimizers,
    sharded,
    shared_data,
    state_bytes,
    values,
)

import ring_keras as ring
from ring_keras import keras_internals as internals
from ring_keras.ops.shards import shard_of
from ring_keras.verify.one_process import leave_job


def memory_worker() -> list[tuple[int, int]]:
    """Bytes of the optimizer's variables, without and with."""
    found = []
    for cls in (keras.optimizers.SGD, keras.optimizers.Adam):
        row = []
        for shard_state in (False, True):
            model = keras.Sequential(
                [keras.Input((16,)), *(keras.layers.Dense(16) for _ in range(4))]
            )
            options = {"momentum": 0.9} if cls is keras.optimizers.SGD else {}
            optimizer = ring.DistributedOptimizer(
                cls(0.1, **options), shard_state=shard_state
            )
            optimizer.build(model.trainable_variables)
            row.append(state_bytes(optimizer))
        found.append(tuple(row))
    return found


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_each_rank_has_its_part_of_the_bytes(rank_pool, size):
    common = 8 + 4  # The number of steps, and the learning rate.
    weights = 4 * (16 * 16 + 16) * 4

    for rank in rank_pool(size).run(memory_worker):
        assert rank == [
            (common + weights, common + weights // size),
            (common + 2 * weights, common + 2 * weights // size),
        ]


def built_before_worker() -> None:
    """Nadam in a LossScaleOptimizer that is built before its state is divided."""
    model = build(1)
    plain, optimizer = (
        optimizers.LossScaleOptimizer(optimizers.Nadam(0.01)) for _ in range(2)
    )
    for one in (plain, optimizer):
        one.build(model.trainable_variables)
    (product,) = internals.unfiled_state([optimizer]).values()
    product.assign(0.5)

    ring.DistributedOptimizer(optimizer, shard_state=True)

    (product,) = internals.unfiled_state([optimizer]).values()
    assert float(product.numpy()) == 0.5
    names = [[v.name for v in one.variables] for one in (plain, optimizer)]
    # It counts steps, and has a rate, before it has the rest.
    assert sorted(names[0]) == sorted(names[1])
    assert any(map(shard_of, optimizer.variables))


def test_a_state_that_is_divided_later_has_the_same_variables(rank_pool):
    rank_pool(2).run(built_before_worker)


def deep_layers() -> list[keras.layers.Layer]:
    """Weights of one to four dimensions."""
    return [
        keras.layers.Reshape((6, 1, 1)),
        keras.layers.Conv2D(5, (3, 1), activation="tanh"),
        keras.layers.Reshape((4, 5)),
        keras.layers.Conv1D(4, 2),
        keras.layers.Flatten(),
        keras.layers.Dense(1, activation="sigmoid", dtype="float32"),
    ]


def means_worker(scales: bool) -> list[bytes]:
    """Adafactor's rows and columns, also where it is built before it is divided."""

    def make() -> keras.optimizers.Optimizer:
        adafactor = optimizers.Adafactor(0.05)
        return optimizers.LossScaleOptimizer(adafactor) if scales else adafactor

    models, states = [], []
    for when in ("never", "before", "after"):
        model = training.assemble(1, deep_layers, None)
        optimizer = make()
        if when == "after":
            optimizer.build(model.trainable_variables)
            training.compile_model(model, optimizer)
        ring.DistributedOptimizer(optimizer, shard_state=when != "never")
        training.compile_model(model, optimizer)
        training.fit(model, shared_data(), training.BATCH)
        store: dict[str, Any] = {}
        optimizer.save_own_variables(store)
        states.append([np.asarray(store[key]).tobytes() for key in store])
        models.append(model)
        shards = [shard_of(variable) for variable in optimizer.variables]
        kept = [shard for shard in shards if shard is not None]
        # A row, a column and what is made of them; of vectors the last alone.
        assert len(kept) == (0 if when == "never" else 3 * 3 + 3)
    whole, before, after = states
    assert whole == before == after
    assert state_bytes(models[1].optimizer) < 0.9 * state_bytes(models[0].optimizer)
    return [training.as_bytes(model.get_weights()) for model in models]


@pytest.mark.slow
@pytest.mark.parametrize("scales", [False, True])
@pytest.mark.parametrize("size", [2, 3])
def test_means_of_rows_and_columns_are_divided(rank_pool, size, scales):
    results = rank_pool(size).run(means_worker, args=(scales,))

    assert len({weights for result in results for weights in result}) == 1


def idle_rank_worker() -> list[bytes]:
    """A rank updates none of the variables, and is then the one that others follow."""
    result = []
    for shard_state in (False, True):
        model = training.assemble(
            1, lambda: [keras.layers.Dense(1, use_bias=False)], None
        )
        optimizer = ring.DistributedOptimizer(
            MAKERS["nadam"](), shard_state=shard_state
        )
        training.compile_model(model, optimizer)
        data = ring.data.shard(training.dataset(training.steps_of(STEPS, ring.size())))
        for _ in range(2):
            last = ring.callbacks.BroadcastGlobalVariables(root_rank=ring.size() - 1)
            training.fit(model, data, training.BATCH, callbacks=[last])
        common = [v.numpy() for v in optimizer.variables if shard_of(v) is None]
        result.append(training.as_bytes([*model.get_weights(), common[-1]]))
    return result


def test_a_rank_without_variables_counts_what_all_have_in_common(rank_pool):
    """Nadam has one product of all its steps."""
    (plain, sharded), *others = rank_pool(2).run(idle_rank_worker)

    assert plain[-4:] != np.float32(1.0).tobytes()
    assert sharded[-4:] == plain[-4:]
    assert sharded == plain
    assert others == [[plain, sharded]]


def copies_worker() -> list[bytes]:
    """Copies have the whole state, and are ordinary optimizers."""
    model = sharded()
    training.fit(model, shared_data(), training.BATCH)
    copied = copy.deepcopy(model)
    assert ring.allgather_object("copied") == ["copied"] * ring.size()
    return values(copied.optimizer)


def test_copies_have_the_whole_state(rank_pool):
    first, second = rank_pool(2).run(copies_worker)

    assert first == second
    assert all(first)


def parts_worker(path: str, in_fit: bool) -> str:
    """One rank has loaded a file, and the other begins anew."""
    model = sharded("sgd")
    training.fit(model, shared_data(), training.BATCH)
    model.save_weights(f"{path}/{ring.rank()}.weights.h5")
    model = sharded("sgd")
    model.optimizer.build(model.trainable_variables)
    if ring.rank() == 0:
        model.load_weights(f"{path}/0.weights.h5")
    with pytest.raises(ring.RankMismatchError) as caught:
        if in_fit:
            training.fit(model, shared_data(), training.BATCH)
        else:
            gradients = [tf.zeros(v.shape) for v in model.trainable_variables]
            model.optimizer.apply(gradients)
    return str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("in_fit", [True, False])
def test_parts_of_different_states_are_found(tmp_path, in_fit):
    args = (parts_worker, str(tmp_path), in_fit)
    for text in run_ranks(initialized, 2, args=args):
        assert "[RK348]" in text


def trained(seed: int) -> keras.Model:
    optimizer = ring.DistributedOptimizer(MAKERS["sgd"](), shard_state=True)
    model = training.compile_model(build(seed), optimizer)
    training.fit(model, shared_data(), training.BATCH)
    return model


def as_many_steps_worker(path: str, how: str) -> str:
    """One rank has loaded another state, of as many steps."""
    for name, seed in ("a", 1), ("b", 2):
        trained(seed).save(f"{path}/{name}.keras")
    own = f"{path}/{'a' if ring.rank() == 0 else 'b'}.keras"
    if how == "divided later":
        model = keras.models.load_model(own)
        optimizer = ring.DistributedOptimizer(model.optimizer, shard_state=True)
        training.compile_model(model, optimizer)
    else:
        model = trained(1)
        if how == "two files" or ring.rank() == 0:
            model.load_weights(own)
    with pytest.raises(ring.RankMismatchError) as caught:
        if how == "saved":
            model.save(f"{path}/c.keras")
        else:
            training.fit(model, shared_data(), training.BATCH)
    return str(caught.value)


@pytest.mark.parametrize(
    ("how", "second"),
    [
        ("two files", "one with the checksum"),
        pytest.param("one file", "none", marks=pytest.mark.slow),
        ("saved", "none"),
        pytest.param("divided later", "one with the checksum", marks=pytest.mark.slow),
    ],
)
def test_parts_of_states_of_as_many_steps_are_found(rank_pool, tmp_path, how, second):
    for text in rank_pool(2).run(as_many_steps_worker, args=(str(tmp_path), how)):
        assert "[RK348]" in text
        assert "rank 0 has loaded one with the checksum" in text
        assert f"rank 1 has loaded {second}" in text


def one_state_worker(path: str) -> None:
    """All ranks have loaded one state, from files of their own, some of them twice."""
    model = trained(1)
    model.save(f"{path}/{ring.rank()}.keras")
    model.save(f"{path}/all.keras")
    model = trained(2)
    if ring.rank() == 0:
        model.load_weights(f"{path}/all.keras")
    model.load_weights(f"{path}/{ring.rank()}.keras")
    training.fit(model, shared_data(), training.BATCH)
    model.save(f"{path}/again.keras")


def test_parts_of_one_state_in_several_files_belong_together(rank_pool, tmp_path):
    rank_pool(2).run(one_state_worker, args=(str(tmp_path),))


def own_layers_worker(path: str) -> None:
    """Each rank's file has the state of its own layer; one is of no step yet."""

    def fresh(seed: int) -> keras.Model:
        model = build(seed)
        own = next(one for one in model.layers if one.trainable_weights)
        optimizer = ring.DistributedOptimizer(
            MAKERS["sgd"](), shard_state=True, local_layers=[own]
        )
        return training.compile_model(model, optimizer)

    model = fresh(1)
    training.fit(model, shared_data(), training.BATCH)
    model.save_weights(f"{path}/{ring.rank()}.weights.h5")
    model = fresh(2)
    training.fit(model, shared_data(), training.BATCH)
    model.load_weights(f"{path}/{ring.rank()}.weights.h5")
    training.fit(model, shared_data(), training.BATCH)

    model = sharded("sgd")
    model.optimizer.build(model.trainable_variables)
    model.save_weights(f"{path}/none{ring.rank()}.weights.h5")
    if ring.rank() == 0:
        model.load_weights(f"{path}/none0.weights.h5")
    training.fit(model, shared_data(), training.BATCH)


def test_what_ranks_have_whole_may_differ(rank_pool, tmp_path):
    rank_pool(2).run(own_layers_worker, args=(str(tmp_path),))


def some_ranks_worker() -> None:
    """Without state there is nothing else by which they would notice."""
    optimizer = ring.DistributedOptimizer(
        keras.optimizers.SGD(0.1), shard_state=ring.rank() == 0
    )
    model = build(1)
    gradients = [tf.zeros(v.shape) for v in model.trainable_variables]
    with pytest.raises(ring.RankMismatchError, match=r"\[RK349\]"):
        optimizer.apply(gradients, model.trainable_variables)
    assert ring.allgather_object(1) == [1] * ring.size()


def test_all_ranks_divide_or_none(rank_pool):
    rank_pool(2).run(some_ranks_worker)


def left_job_worker() -> None:
    """The state is divided for two ranks, and one of them goes on alone."""
    model = sharded("sgd")
    gradients = [tf.zeros(v.shape) for v in model.trainable_variables]
    model.optimizer.apply(gradients, model.trainable_variables)
    leave_job()
    model.optimizer.build(model.trainable_variables)  # Which changes nothing.
    with pytest.raises(ring.RingKerasError, match=r"\[RK339\]"):
        model.optimizer.apply(gradients)


def test_a_state_divided_for_other_ranks_is_refused():
    run_ranks(initialized, 2, args=(left_job_worker,))
