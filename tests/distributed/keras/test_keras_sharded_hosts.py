"""Optimizers whose state is divided among ranks of several hosts.

There each rank gets the reduced gradient of what it updates, and no more.
"""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest
from support import run_ranks, training
from support.sharded_models import (
    needs_several,
    require_own_part,
    state_bytes,
    values,
)
from support.sharded_pieces import MAKERS, WORDS, own_data, shards

import ring_keras as ring

# Smaller than the larger variables, and larger than the smaller ones.
BUCKET_BYTES = 100_000
# Whose gradients all ranks need whole, or that has no state to divide.
WHOLE = ["sgd_clipped", "averages", "loss_scaled", "sgd_without_state"]
# `adamax` clips by value.
PARTS = ["sgd", "adam", "adamw", "adamax", "accumulation", "rmsprop"]


def hosts(*of_ranks: int) -> list[dict[str, str]]:
    return [{"RING_KERAS_HOST_NAME": f"host{host}"} for host in of_ranks]


def scattered() -> int:
    """How many reduce-scatters there were."""
    found = ring.stats().collectives
    return sum(one.count for one in found if one.kind == "reduce_scatter")


def build() -> keras.Model:
    """With sparse gradients, and with a bucket that is too small to be divided."""
    keras.utils.set_random_seed(1 + ring.rank())
    return keras.Sequential(
        [
            keras.Input((8,), dtype="int32"),
            keras.layers.Embedding(WORDS, 64),
            keras.layers.Flatten(),
            keras.layers.Dense(200, activation="tanh"),
            keras.layers.Dense(130, activation="tanh"),
            keras.layers.Dense(60, activation="tanh"),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )


def compiled(name: str, shard_state: bool, **options: object) -> keras.Model:
    model = build()
    optimizer = ring.DistributedOptimizer(
        MAKERS[name](), shard_state=shard_state, bucket_size_bytes=BUCKET_BYTES
    )
    model.compile(optimizer, "binary_crossentropy", **options)
    return model


def fit(name: str, shard_state: bool, **options: object) -> keras.Model:
    model = compiled(name, shard_state, **options)
    x, y = own_data()
    # Batches of the ranks differ in length at the end.
    own = len(x) - ring.rank()
    model.fit(x[:own], y[:own], batch_size=4, shuffle=False, verbose=0)
    return model


def compare_worker(names: list[str], exact: bool, eager: bool) -> list[bytes]:
    ring.init()
    found = []
    for name in names:
        whole = fit(name, False, run_eagerly=eager)
        before = scattered()
        sharded = fit(name, True, run_eagerly=eager)
        assert (scattered() > before) == (name in PARTS), name
        if exact:
            assert training.as_bytes(sharded.get_weights()) == training.as_bytes(
                whole.get_weights()
            ), name
            require_own_part(sharded.optimizer, whole.optimizer, name)
        for one, other in zip(sharded.get_weights(), whole.get_weights(), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5, err_msg=name)
        assert shards(sharded) or name == "sgd_without_state"
        found.append(training.as_bytes(sharded.get_weights()))
    return found


@pytest.mark.parametrize(
    ("of_ranks", "names", "eager"),
    [
        ((0, 1), ["adamw", "loss_scaled"], False),
        pytest.param((0, 1), [*PARTS, *WHOLE], False, marks=pytest.mark.slow),
        pytest.param((0, 1), [*PARTS, *WHOLE], True, marks=pytest.mark.slow),
        pytest.param((0, 0, 1, 1), PARTS, False, marks=pytest.mark.slow),
        pytest.param((0, 1, 2), PARTS, False, marks=pytest.mark.slow),
        pytest.param((0, 0, 1), [*PARTS, *WHOLE], False, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_weights_are_those_of_whole_gradients(of_ranks, names, eager):
    """The same bits on two hosts; on more, sums are in another order."""
    exact = len({*of_ranks}) == 2

    found = run_ranks(
        compare_worker,
        len(of_ranks),
        env=hosts(*of_ranks),
        args=(names, exact, eager),
        timeout_s=240,
    )

    assert all(weights == found[0] for weights in found)


def saving_worker(path: str) -> list[bytes]:
    ring.init()
    model = fit("adamw", True)
    model.save(f"{path}/whole.keras")
    store: dict[str, np.ndarray] = {}
    model.optimizer.save_own_variables(store)
    return [np.asarray(value).tobytes() for value in store.values()]


def loading_worker(path: str) -> list[bytes]:
    model = compiled("adamw", True)
    model.optimizer.build(model.trainable_variables)
    model.load_weights(f"{path}/whole.keras")
    store: dict[str, np.ndarray] = {}
    model.optimizer.save_own_variables(store)
    return [np.asarray(value).tobytes() for value in store.values()]


@pytest.mark.slow
def test_one_host_goes_on_from_the_file_of_several(rank_pool, tmp_path: Path):
    """Where the state is divided in another way."""
    saved = run_ranks(saving_worker, 2, env=hosts(0, 1), args=(str(tmp_path),))

    loaded = rank_pool(3).run(loading_worker, args=(str(tmp_path),))

    assert all(its == saved[0] for its in [*saved, *loaded])
    plain = keras.models.load_model(f"{tmp_path}/whole.keras")
    assert values(plain.optimizer) == saved[0]


def several_worker(jit: bool) -> list[bytes]:
    """Two optimizers with averages, two types of weights, and a bucket for each."""
    ring.init()
    averages = {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": 2}

    def trained(shard_state: bool) -> list[np.ndarray]:
        keras.utils.set_random_seed(1)
        types = ("float32", "float32", "float64", "float64")
        layers = [
            keras.layers.Dense(16, activation="tanh", name=f"layer_{n}", dtype=dtype)
            for n, dtype in enumerate(types)
        ]
        model = keras.Sequential([keras.Input((16,)), *layers])
        by_name = keras.optimizers.OptimizerMap(
            keras.optimizers.SGD(0.01, momentum=0.9, **averages),
            {".*layer_[13].*": keras.optimizers.AdamW(0.01, **averages)},
        )
        optimizer = ring.DistributedOptimizer(
            keras.optimizers.MultiOptimizer(by_name),
            shard_state=shard_state,
            bucket_size_bytes=600,
        )
        model.compile(optimizer, "mse", jit_compile=jit)
        x = np.random.default_rng(ring.rank()).normal(size=(20, 16))
        model.fit(x, x[:, ::-1], batch_size=4, shuffle=False, verbose=0)
        weights: list[np.ndarray] = model.get_weights()
        return weights

    whole, divided = trained(False), trained(True)
    for one, other in zip(divided, whole, strict=True):
        if jit:
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
        else:
            np.testing.assert_array_equal(one, other)
    return [training.as_bytes(divided)]


@needs_several
@pytest.mark.slow
@pytest.mark.parametrize("jit", [False, True])
def test_several_optimizers_send_several_buckets(jit: bool) -> None:
    found = run_ranks(several_worker, 2, env=hosts(0, 1), args=(jit,), timeout_s=240)

    assert found[0] == found[1]


def balance_worker() -> list[float]:
    """Of the optimizer's bytes this rank's share; of a piecewise and a whole one."""
    ring.init()
    found = []
    for make in (keras.optimizers.Adam, keras.optimizers.Lamb):
        nbytes = []
        for divided in (False, True):
            model, optimizer = build(), make(0.01)
            ring.DistributedOptimizer(
                optimizer, shard_state=divided, bucket_size_bytes=BUCKET_BYTES
            )
            optimizer.build(model.trainable_variables)
            nbytes.append(state_bytes(optimizer))
        found.append(nbytes[1] / nbytes[0])
    return found


def test_each_rank_has_its_share() -> None:
    pieces, whole = zip(*run_ranks(balance_worker, 2, env=hosts(0, 1)), strict=True)

    assert max(pieces) <= 0.51
    # The largest variable is most of the model.
    assert sorted(whole) == pytest.approx([0.27, 0.73], abs=0.03)
