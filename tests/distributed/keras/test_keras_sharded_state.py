"""Optimizers whose state the ranks divide: the same training, with less memory."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import training
from support.log_texts import LogTexts
from support.run_ranks import run_ranks

import ring_keras as ring
from ring_keras import _libraries, verify
from ring_keras import keras_internals as internals
from ring_keras.ops.shards import shard_of
from ring_keras.verify.one_process import leave_job

STEPS = 6


def layers() -> list[keras.layers.Layer]:
    """More variables than ranks, one of them with a constraint."""
    return [
        keras.layers.Dense(8, activation="tanh", kernel_constraint="max_norm"),
        keras.layers.Dense(5, activation="tanh"),
        keras.layers.Dense(1, activation="sigmoid", dtype="float32"),
    ]


def build(seed: int) -> keras.Model:
    return training.assemble(seed, layers, None)


def adamw_without_biases(**options: Any) -> keras.optimizers.Optimizer:
    optimizer = keras.optimizers.AdamW(0.01, weight_decay=0.1, **options)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return optimizer


def decaying(cls: type[keras.optimizers.Optimizer], **options: Any) -> Any:
    schedule = keras.optimizers.schedules.ExponentialDecay(0.05, 2, 0.8)
    return cls(schedule, **options)


optimizers = keras.optimizers
MAKERS: dict[str, Callable[..., keras.optimizers.Optimizer]] = {
    "sgd": lambda: optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "sgd_without_state": lambda: optimizers.SGD(0.1),
    "adam": lambda: optimizers.Adam(0.01, amsgrad=True),
    "adamw": adamw_without_biases,
    "nadam": lambda: optimizers.Nadam(0.01),
    "adamax": lambda: optimizers.Adamax(0.01),
    "rmsprop": lambda: optimizers.RMSprop(0.01, momentum=0.5, centered=True),
    "adagrad": lambda: optimizers.Adagrad(0.1),
    "adadelta": lambda: optimizers.Adadelta(1.0),
    "ftrl": lambda: optimizers.Ftrl(0.1),
    "lion": lambda: optimizers.Lion(0.01),
    "lamb": lambda: optimizers.Lamb(0.01),
    "adafactor": lambda: optimizers.Adafactor(0.01),
    "adafactor_crossed": lambda: optimizers.Adafactor(
        0.01,
        weight_decay=0.1,
        gradient_accumulation_steps=2,
        global_clipnorm=0.5,
        use_ema=True,
        ema_momentum=0.5,
        ema_overwrite_frequency=2,
    ),
    "clipvalue": lambda: optimizers.Adam(0.01, clipvalue=0.01),
    "clipnorm": lambda: optimizers.Adam(0.01, clipnorm=0.05),
    "global_clipnorm": lambda: optimizers.SGD(0.1, momentum=0.9, global_clipnorm=0.1),
    "averages": lambda: adamw_without_biases(use_ema=True, ema_momentum=0.5),
    "averages_taken": lambda: optimizers.Lamb(
        0.01, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2
    ),
    "schedule": lambda: decaying(optimizers.Adam),
    "accumulation": lambda: decaying(
        optimizers.AdamW, gradient_accumulation_steps=2, global_clipnorm=0.5
    ),
    "accumulated_averages": lambda: optimizers.SGD(
        0.1,
        momentum=0.9,
        gradient_accumulation_steps=2,
        use_ema=True,
        ema_momentum=0.5,
        ema_overwrite_frequency=2,
    ),
    "loss_scaled": lambda: optimizers.LossScaleOptimizer(
        optimizers.Adam(0.01), initial_scale=8.0, dynamic_growth_steps=2
    ),
    "loss_scaled_accumulation": lambda: optimizers.LossScaleOptimizer(
        optimizers.Adam(0.01, gradient_accumulation_steps=2)
    ),
}
if hasattr(keras.optimizers, "Muon"):  # Older Keras has none.
    MAKERS["muon"] = lambda: optimizers.Muon(0.01, weight_decay=0.1)
    # Of which some variables' updates count steps, and others do not.
    MAKERS["accumulated_muon"] = lambda: optimizers.Muon(
        0.01, gradient_accumulation_steps=2
    )


def fit(name: str, shard_state: bool, **options: Any) -> keras.Model:
    size, rank = ring.size(), ring.rank()
    model = build(1 + rank)
    optimizer = ring.DistributedOptimizer(MAKERS[name](), shard_state=shard_state)
    training.compile_model(model, optimizer, **options)
    data = training.dataset(training.steps_of(STEPS, size))  # The last is uneven.
    training.fit(model, ring.data.shard(data, remainder="keep"), training.BATCH)
    return model


def fit_of_unknown_length(name: str, shard_state: bool) -> keras.Model:
    """At its end TensorFlow would run what needs no batch, such as weight decay.

    The state that is not divided has data of known length, for comparison.
    """
    model = build(1 + ring.rank())
    optimizer = ring.DistributedOptimizer(MAKERS[name](), shard_state=shard_state)
    training.compile_model(model, optimizer)
    data = training.dataset(training.steps_of(STEPS, ring.size(), uneven=False))
    own = ring.data.shard(data)
    if shard_state:
        own = own.filter(lambda x, y: True)
    training.fit(model, own, training.BATCH, epochs=2)
    return model


def uneven_fit(name: str, shard_state: bool) -> keras.Model:
    """A rank without data goes on with empty batches."""
    rank = ring.rank()
    model = build(1 + rank)
    optimizer = ring.DistributedOptimizer(MAKERS[name](), shard_state=shard_state)
    training.compile_model(model, optimizer)
    own = training.dataset().skip(100 * rank).take(12 + 8 * rank)
    model.fit(ring.data.join(own.batch(training.BATCH)), verbose=0)
    return model


def loop(name: str, shard_state: bool, in_function: bool) -> keras.Model:
    size, rank = ring.size(), ring.rank()
    x, y = training.arrays()
    model = build(1)
    optimizer = ring.DistributedOptimizer(MAKERS[name](), shard_state=shard_state)

    def step(x, y):
        with tf.GradientTape() as tape:
            y_pred = model(x, training=True)
            loss = tf.reduce_mean(keras.losses.binary_crossentropy(y, y_pred))
            if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
                loss = optimizer.scale_loss(loss)
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)

    optimizer.build(model.trainable_variables)
    if in_function:
        step = tf.function(step)
    batch = training.BATCH
    for start in range(rank * batch, STEPS * size * batch, size * batch):
        step(x[start : start + batch], y[start : start + batch])
    model.optimizer = optimizer
    return model


WAYS: dict[str, Callable[[str, bool], keras.Model]] = {
    "fit": fit,
    "jit": lambda name, shard: fit(name, shard, jit_compile=True),
    "eager_fit": lambda name, shard: fit(name, shard, run_eagerly=True),
    "several_steps": lambda name, shard: fit(name, shard, steps_per_execution=2),
    "unknown_length": fit_of_unknown_length,
    "uneven": lambda name, shard: uneven_fit(name, shard),
    "eager_loop": lambda name, shard: loop(name, shard, in_function=False),
    "loop": lambda name, shard: loop(name, shard, in_function=True),
}


def compare_worker(way: str, names: list[str]) -> dict[str, list[bytes]]:
    """The weights with and without.

    XLA rounds the two steps in its own way on a GPU: there they are compared here.
    """
    result = {}
    for name in names:
        models = [WAYS[way](name, shard_state) for shard_state in (False, True)]
        weights = [model.get_weights() for model in models]
        if tf.config.get_visible_devices("GPU"):
            for pair in zip(*weights, strict=True):
                np.testing.assert_allclose(*pair, rtol=1e-4, atol=1e-6, err_msg=name)
            weights = weights[1:]
        result[name] = [training.as_bytes(one) for one in weights]
    return result


def require_same_weights(results: list[dict[str, list[bytes]]]) -> None:
    for name in results[0]:
        everyones = [weights for result in results for weights in result[name]]
        assert len(set(everyones)) == 1, f"{name}: weights differ"


# Momentum, decay with exclusions, a norm of the whole variable and averages, a schedule
# and a norm of all gradients.
SOME = ["sgd", "adamw", "averages_taken", "accumulation"]
OTHERS = [name for name in MAKERS if name != "averages_taken"]


def test_optimizers_train_the_same_weights(rank_pool):
    names = ["averages_taken"]
    require_same_weights(rank_pool(2).run(compare_worker, args=("fit", names)))


@pytest.mark.slow
@pytest.mark.parametrize("names", [OTHERS[n::4] for n in range(4)], ids="-".join)
def test_every_optimizer_trains_the_same_weights(rank_pool, names):
    require_same_weights(rank_pool(2).run(compare_worker, args=("fit", names)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "name"),
    [
        (2, "accumulated_muon" if "accumulated_muon" in MAKERS else "adamw"),
        (3, "accumulated_muon"),
        (3, "adamw"),
    ],
)
def test_data_of_unknown_length_train_the_same_weights(rank_pool, size, name):
    if name not in MAKERS:
        pytest.skip("needs a newer Keras")
    results = rank_pool(size).run(compare_worker, args=("unknown_length", [name]))
    require_same_weights(results)


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


@pytest.mark.slow
@pytest.mark.parametrize("way", ["several_steps", "uneven"])
def test_ways_of_fit_train_the_same_weights(rank_pool, way):
    require_same_weights(rank_pool(2).run(compare_worker, args=(way, SOME)))


@pytest.mark.parametrize(
    ("way", "names"),
    [
        ("loop", ["accumulation"]),
        pytest.param("loop", ["sgd"], marks=pytest.mark.slow),
        pytest.param("eager_loop", ["sgd", "accumulation"], marks=pytest.mark.slow),
    ],
)
def test_loops_train_the_same_weights(rank_pool, way, names):
    require_same_weights(rank_pool(2).run(compare_worker, args=(way, names)))


@pytest.mark.skipif(
    not _libraries.has_xla_kernels(), reason="needs TensorFlow 2.20 or newer"
)
@pytest.mark.parametrize(
    "names",
    [
        pytest.param(["sgd"], marks=pytest.mark.slow),
        pytest.param(SOME, marks=pytest.mark.slow),
    ],
    ids=len,
)
def test_compiled_steps_train_the_same_weights(rank_pool, names):
    require_same_weights(rank_pool(2).run(compare_worker, args=("jit", names)))


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_three_ranks_train_the_same_weights(rank_pool, way):
    names = [*SOME, "adam", "clipvalue", "clipnorm", "lamb", "adafactor_crossed"]
    if way == "jit":
        if not _libraries.has_xla_kernels():
            pytest.skip("needs TensorFlow 2.20 or newer")
        names = ["averages_taken", "adafactor_crossed"]  # Each compiles for long.
    require_same_weights(rank_pool(3).run(compare_worker, args=(way, names)))


def state_bytes(optimizer: keras.optimizers.Optimizer) -> int:
    """What this rank has of it."""
    return sum(np.asarray(variable).nbytes for variable in optimizer.variables)


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


def with_two_optimizers(shard_state: bool) -> bytes:
    """One model with two optimizers, each of which trains a part of it."""
    model = build(1)
    parts = model.trainable_variables[:2], model.trainable_variables[2:]
    both = [
        ring.DistributedOptimizer(MAKERS[name](), shard_state=shard_state)
        for name in ("adam", "lamb")
    ]

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(keras.losses.binary_crossentropy(y, model(x)))
        gradients = tape.gradient(loss, [*parts[0], *parts[1]])
        both[0].apply(gradients[:2], parts[0])
        both[1].apply(gradients[2:], parts[1])

    x, y = training.arrays()
    for optimizer, part in zip(both, parts, strict=True):
        optimizer.build(part)
    for start in range(ring.rank(), 12, ring.size()):
        step(x[start:360:12], y[start:360:12])
    return training.as_bytes(model.get_weights())


def two_optimizers_worker() -> list[bytes]:
    return [with_two_optimizers(shard_state) for shard_state in (False, True)]


@pytest.mark.slow
def test_two_optimizers_train_the_same_weights(rank_pool):
    found = rank_pool(2).run(two_optimizers_worker)

    assert len({weights for rank in found for weights in rank}) == 1


def mixed_precision_worker() -> list[bytes]:
    """`compile` puts a LossScaleOptimizer around ours."""
    keras.config.set_dtype_policy("mixed_float16")
    try:
        models = [fit("adam", shard_state) for shard_state in (False, True)]
    finally:
        keras.config.set_dtype_policy("float32")
    assert isinstance(models[1].optimizer, keras.optimizers.LossScaleOptimizer)
    assert state_bytes(models[1].optimizer) < state_bytes(models[0].optimizer)
    return [training.as_bytes(model.get_weights()) for model in models]


@pytest.mark.slow
def test_mixed_precision_trains_the_same_weights(rank_pool):
    found = rank_pool(2).run(mixed_precision_worker)

    assert len({weights for rank in found for weights in rank}) == 1


def values(optimizer: keras.optimizers.Optimizer) -> list[bytes]:
    return [np.asarray(variable).tobytes() for variable in optimizer.variables]


def files_worker(path: str, name: str) -> None:
    """Files have the whole state, and a part of it is taken out of them."""
    whole, sharded = (fit(name, shard_state) for shard_state in (False, True))
    sharded.save(f"{path}/{name}.keras")
    sharded.save_weights(f"{path}/{ring.rank()}-{name}.weights.h5")

    plain = keras.models.load_model(f"{path}/{name}.keras")
    assert values(plain.optimizer) == values(whole.optimizer)
    plain = build(9)
    plain.compile(MAKERS[name](), "mse")
    plain.optimizer.build(plain.trainable_variables)
    plain.load_weights(f"{path}/{ring.rank()}-{name}.weights.h5")
    assert values(plain.optimizer) == values(whole.optimizer)

    again = build(9)
    optimizer = ring.DistributedOptimizer(MAKERS[name](), shard_state=True)
    training.compile_model(again, optimizer)
    again.optimizer.build(again.trainable_variables)
    again.load_weights(f"{path}/{name}.weights.h5".replace(name, f"0-{name}"))
    assert values(again.optimizer) == values(sharded.optimizer)

    loaded = keras.models.load_model(f"{path}/{name}.keras")
    ring.DistributedOptimizer(loaded.optimizer, shard_state=True)
    assert values(loaded.optimizer) == values(sharded.optimizer)
    data = training.dataset(training.steps_of(2, ring.size()))
    for model in (whole, sharded, again, loaded):
        training.fit(model, ring.data.shard(data, remainder="keep"), training.BATCH)
        assert training.as_bytes(model.get_weights()) == training.as_bytes(
            whole.get_weights()
        )


@pytest.mark.parametrize(
    "name",
    [
        "adam",
        pytest.param("loss_scaled", marks=pytest.mark.slow),
        pytest.param("averages_taken", marks=pytest.mark.slow),
        pytest.param("nadam", marks=pytest.mark.slow),
        pytest.param("adafactor", marks=pytest.mark.slow),
    ],
)
def test_files_have_the_whole_state(rank_pool, tmp_path, name):
    rank_pool(2).run(files_worker, args=(str(tmp_path), name))


def sharded(name: str = "adam", **options: Any) -> keras.Model:
    optimizer = ring.DistributedOptimizer(MAKERS[name](), shard_state=True)
    return training.compile_model(build(1), optimizer, **options)


def shared_data() -> tf.data.Dataset:
    return ring.data.shard(training.dataset(64))


def checkpoint_worker(path: str) -> tuple[list[bytes], list[str]]:
    """Every rank saves to one path, in `fit`."""
    model = sharded()
    with LogTexts() as texts:
        training.fit(
            model,
            shared_data(),
            training.BATCH,
            epochs=2,
            callbacks=[
                keras.callbacks.ModelCheckpoint(f"{path}/{{epoch}}.keras"),
                keras.callbacks.ModelCheckpoint(
                    f"{path}/best.weights.h5",
                    monitor="loss",
                    save_best_only=True,
                    save_weights_only=True,
                ),
            ],
        )
    loaded = keras.models.load_model(f"{path}/2.keras")
    assert training.as_bytes(loaded.get_weights()) == training.as_bytes(
        model.get_weights()
    )
    return values(loaded.optimizer), [text for text in texts if "RK6" in text]


def checkpoint_of_one_rank_worker(path: str) -> None:
    model = build(1)
    optimizer = ring.DistributedOptimizer(MAKERS["adam"](), shard_state=True)
    training.compile_model(model, optimizer)
    own = [keras.callbacks.ModelCheckpoint(path)] if ring.rank() == 0 else []
    data = ring.data.shard(training.dataset(40), seed=1)
    with pytest.raises(ring.RankMismatchError, match="RK338"):
        training.fit(model, data, training.BATCH, callbacks=own)


class Saves(keras.callbacks.Callback):
    """One of the user's own, on all ranks."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if not self.path:
            raise OSError("there is no_directory")
        self.model.save(self.path)


def unwritable_worker(path: str, how: str) -> list[str]:
    """Rank 1 cannot write its file, twice; then all train and save."""
    model = sharded()
    training.fit(model, shared_data(), training.BATCH)
    nowhere = f"{path}/no_directory/model.keras"
    if how == "checkpoint":  # Which would make the directory.
        (Path(path) / "no_directory").touch()
    if how == "earlier":
        nowhere = ""
    own = nowhere if ring.rank() == 1 else f"{path}/{ring.rank()}.keras"
    make = keras.callbacks.ModelCheckpoint if how == "checkpoint" else Saves
    found = []
    for _ in range(2):
        with pytest.raises((OSError, ring.RankMismatchError)) as caught:
            if how == "alone":
                model.save(own)
            else:
                data = shared_data()
                training.fit(model, data, training.BATCH, callbacks=[make(own)])
        found.append(str(caught.value))
        x, y = training.arrays()
        model.train_on_batch(x[:8], y[:8])
    model = sharded()
    training.fit(model, shared_data(), training.BATCH)
    model.save(f"{path}/good{ring.rank()}.keras")
    return found


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    "how",
    [
        "alone",
        "own",
        "earlier",
        "checkpoint",
    ],
)
@pytest.mark.slow
def test_all_ranks_hear_of_a_file_that_one_cannot_write(rank_pool, tmp_path, how, size):
    args = (str(tmp_path), how)
    messages = rank_pool(size).run(unwritable_worker, args=args, timeout_s=60)

    own = messages.pop(1)
    for others in messages:
        for message, cause in zip(others, own, strict=True):
            assert "no_directory" in cause and "[RK" not in cause
            assert "[RK310] " in message and "rank 1" in message
            assert "no_directory" in message


def differing_checkpoints_worker(path: str, what: str) -> None:
    is_first = ring.rank() == 0
    file = f"{path}/{ring.rank()}.keras"
    checkpoint, validation = {
        "save_freq": ({"save_freq": 2 + ring.rank()}, None),
        "best of a batch": ({"save_best_only": True, "save_freq": 2}, None),
        "best of one": ({"save_best_only": True}, is_first),
    }[what]
    model = sharded()
    own = training.dataset(8).batch(4)
    for _ in range(2):
        with pytest.raises(ring.RankMismatchError, match="RK338"):
            training.fit(
                model,
                shared_data(),
                training.BATCH,
                validation_data=own if validation else None,
                callbacks=[keras.callbacks.ModelCheckpoint(file, **checkpoint)],
            )
    assert ring.allgather_object(what) == [what] * ring.size()


@pytest.mark.parametrize("what", ["save_freq", "best of a batch", "best of one"])
def test_checkpoints_that_may_save_on_some_ranks_are_refused(rank_pool, tmp_path, what):
    args = (str(tmp_path), what)
    rank_pool(2).run(differing_checkpoints_worker, args=args, timeout_s=60)


def test_a_checkpoint_of_one_rank_is_refused(rank_pool, tmp_path):
    path = str(tmp_path / "one.keras")
    rank_pool(2).run(checkpoint_of_one_rank_worker, args=(path,))


@pytest.mark.slow
def test_checkpoints_of_all_ranks_are_whole(rank_pool, tmp_path):
    (first, texts), (second, _) = rank_pool(2).run(
        checkpoint_worker, args=(str(tmp_path),)
    )

    assert first == second
    assert not texts
    assert {path.name for path in tmp_path.iterdir()} == {
        "1.keras",
        "2.keras",
        "best.weights.h5",
    }


def refused(code: str, call: Callable[[], Any]) -> None:
    """On this rank; the other one is refused, too, and comes here."""
    with pytest.raises((ValueError, ring.RingKerasError), match=rf"\[{code}\]"):
        call()
    assert ring.allgather_object(code) == [code] * ring.size()


class OwnAdam(keras.optimizers.Adam):
    """May use the state of one weight to update another."""


def refused_options_worker(path: str) -> None:
    optimizer = ring.DistributedOptimizer
    adam = keras.optimizers.Adam
    refused("RK336", lambda: optimizer(OwnAdam(), shard_state=True))
    one = ring.add_process_set([0])
    refused("RK336", lambda: optimizer(adam(), process_set=one, shard_state=True))
    ring.remove_process_set(one)

    model = sharded()
    model.optimizer.build(model.trainable_variables)
    refused("RK336", lambda: model.save(f"{path}/model.h5"))
    checkpoint = tf.train.Checkpoint(model=model)
    refused("RK336", lambda: checkpoint.save(f"{path}/checkpoint"))
    model.export(f"{path}/{ring.rank()}", verbose=False)  # Has no optimizer.
    variables = model.optimizer.variables
    refused("RK337", lambda: ring.broadcast_variables(variables))
    refused("RK337", lambda: ring.elastic.TensorFlowState(variables))


def test_what_does_not_go_together_is_refused(rank_pool, tmp_path):
    rank_pool(2).run(refused_options_worker, args=(str(tmp_path),))


def refused_callbacks_worker(path: str) -> None:
    checkpoint = keras.callbacks.ModelCheckpoint(f"{path}/model.keras")
    callbacks = [
        ring.callbacks.RootOnly(keras.callbacks.BackupAndRestore(path)),
        keras.callbacks.SwapEMAWeights(),
        None,
        ring.callbacks.RootOnly(checkpoint),
        ring.callbacks.BestModelCheckpoint("loss", filepath=f"{path}/model.keras"),
    ]
    for callback in callbacks:
        model = sharded("averages_taken")
        if callback is None:
            callback = ring.callbacks.BroadcastGlobalVariables(
                local_variables=model.layers[0].weights
            )
        refused(
            "RK336",
            lambda model=model, callback=callback: training.fit(
                model, shared_data(), training.BATCH, callbacks=[callback]
            ),
        )


def test_callbacks_that_need_the_whole_state_are_refused(tmp_path):
    run_ranks(initialized, 2, args=(refused_callbacks_worker, str(tmp_path)))


def initialized(worker: Callable[..., Any], *args: Any) -> Any:
    ring.init()
    return worker(*args)


class FullDisk(dict):
    """Takes nothing, on one rank."""

    def __setitem__(self, key: str, value: Any) -> None:
        raise OSError("no space left")


def failing_save_worker() -> None:
    model = sharded()
    optimizer = model.optimizer
    optimizer.build(model.trainable_variables)
    store = FullDisk() if ring.rank() == 1 else {}
    with pytest.raises(ring.RankMismatchError, match="on rank 1: OSError: no space"):
        optimizer.save_own_variables(store)
    optimizer.iterations.assign(ring.rank())
    with pytest.raises(ring.RankMismatchError, match=r"\[RK348\].*rank 1 1"):
        optimizer.save_own_variables({})
    assert ring.allgather_object(1) == [1] * ring.size()


def test_all_ranks_hear_of_a_save_that_fails_on_one(rank_pool):
    rank_pool(2).run(failing_save_worker)


def verify_worker() -> None:
    with pytest.raises(ring.RingKerasError, match=r"\[RK336\]"):
        verify.compare(lambda: training.fit(sharded(), shared_data(), training.BATCH))


def test_verify_refuses_it():
    run_ranks(initialized, 2, args=(verify_worker,))


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


class SavesAlone(keras.callbacks.Callback):
    """One of the user's own."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.model.save(self.path)


def saving_alone_worker(path: str) -> list[str]:
    model = sharded()
    found = []
    with pytest.raises((ValueError, ring.RankMismatchError)) as caught:
        training.fit(
            model,
            shared_data(),
            training.BATCH,
            callbacks=[ring.callbacks.RootOnly(SavesAlone(f"{path}/model.keras"))],
        )
    found.append(str(caught.value))
    ring.barrier()
    with (
        pytest.raises((ValueError, ring.RankMismatchError)) as caught,
        ring.callbacks.RootOnly() as is_root,
    ):
        if is_root:
            model.save(f"{path}/model.keras")
    found.append(str(caught.value))
    ring.barrier()
    model.save(f"{path}/{ring.rank()}.keras")  # Nothing is left behind.
    return found


def test_one_rank_does_not_save_alone(tmp_path):
    found = run_ranks(initialized, 2, args=(saving_alone_worker, str(tmp_path)))

    assert all("[RK338]" in text for texts in found for text in texts)


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


def first_saves_alone_worker(directory: str) -> None:
    ring.init()
    model = fit("adam", shard_state=True)
    if ring.rank() == 0:
        with pytest.raises(ring.PeerLostError, match=r"\[RK338\] .*on every rank"):
            model.save(f"{directory}/model.keras")


@pytest.mark.slow
def test_a_rank_that_saves_alone_is_told_why_it_fails(tmp_path):
    run_ranks(first_saves_alone_worker, 2, args=(str(tmp_path),))
