"""Data were divided, and nobody divides the work: who trains alone is told."""

from __future__ import annotations

import warnings
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import run_ranks, training
from support.log_texts import LogTexts

import ring_keras as ring


class TapeModel(keras.Model):
    """Averages in a step of its own."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x, y = data
        with ring.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_mean((self(x, training=True) - y) ** 2)
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


def told(data, model=None, callbacks=(), *, distributed=False):
    """What a `fit` warns of."""
    keras.utils.set_random_seed(1)
    model = model or training.build(1)
    optimizer = keras.optimizers.SGD(0.01)
    model.compile(
        ring.DistributedOptimizer(optimizer) if distributed else optimizer, "mse"
    )
    with LogTexts() as texts:
        if isinstance(data, tuple):
            x, y = data
            model.fit(x, y, epochs=2, verbose=0, callbacks=list(callbacks))
        else:
            model.fit(data.batch(4), epochs=2, verbose=0, callbacks=list(callbacks))
    return texts


def lone_fits_worker():
    x, y = (array[:16] for array in training.arrays())
    dataset = tf.data.Dataset.from_tensor_slices((x, y))
    part = ring.data.shard(dataset, seed=1)
    found = {
        "dataset": told(part),
        "unshuffled dataset": told(ring.data.shard(dataset).map(lambda x, y: (x, y))),
        "arrays": told(ring.data.shard((x, y))),
        "distributed": told(part, distributed=True),
        "callback": told(part, callbacks=[ring.callbacks.BroadcastGlobalVariables()]),
        "all in one callback": told(part, callbacks=[ring.callbacks.Distributed()]),
        "tape": told(part, model=TapeModel()),
        "whole data": told(dataset),
    }
    with LogTexts() as found["divided twice"]:
        ring.data.shard(part, seed=1)
    with LogTexts() as found["divided twice, elsewhere"]:
        ring.data.shard(dataset, seed=1)
    return ring.rank(), found


@pytest.mark.slow
def test_each_rank_that_trains_a_model_of_its_own_is_told(rank_pool) -> None:
    for rank, found in rank_pool(2).run(lone_fits_worker):
        warned = {case for case, texts in found.items() if texts}
        if rank != 0:
            assert warned == set()
            continue
        assert warned == {"dataset", "unshuffled dataset", "arrays", "divided twice"}
        for case in ("dataset", "unshuffled dataset", "arrays"):
            (text,) = found[case]
            assert "not distributed, so each rank trains a model of its own" in text
            assert "ring_keras.DistributedOptimizer(optimizer)" in text
        (text,) = found["divided twice"]
        assert "are a rank's part already" in text


class OwnStep(TapeModel):
    """A step of its own, as in many an example: with a tape that averages nothing."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x, training=True) - y) ** 2)
        variables = self.trainable_variables
        self.optimizer.apply_gradients(
            zip(tape.gradient(loss, variables), variables, strict=True)
        )
        return {"loss": loss}


def loop(x, y, optimizer, wrap=lambda tape: tape, *, by_hand=False, traced=True):
    """Two steps of a loop."""
    dense = keras.layers.Dense(1)
    dense.build(x.shape)

    def step():
        with wrap(tf.GradientTape()) as tape:
            loss = tf.reduce_mean((dense(x) - y) ** 2)
        gradients = tape.gradient(loss, dense.trainable_variables)
        if by_hand:
            gradients = [ring.allreduce(gradient) for gradient in gradients]
        optimizer.apply(gradients, dense.trainable_variables)

    ring.broadcast_variables(dense.weights)
    step = tf.function(step) if traced else step
    step()
    step()


def fit_own_step(x, y, optimizer):
    model = OwnStep()
    model.compile(optimizer)
    model.fit(x, y, epochs=2, verbose=0)


def train_on_batch(x, y, optimizer):
    model = training.build(1)
    model.compile(optimizer, "mse")
    model.train_on_batch(x, y)
    model.train_on_batch(x, y)


# What trains, and whether each rank does it alone.
OWN_STEPS = {
    "fit": (fit_own_step, True),
    "train_on_batch": (train_on_batch, True),
    "loop": (loop, True),
    "eager loop": (lambda *args: loop(*args, traced=False), True),
    "tape": (lambda *args: loop(*args, ring.DistributedGradientTape), False),
    "by hand": (lambda *args: loop(*args, by_hand=True, traced=False), False),
    "optimizer": (
        lambda x, y, optimizer: loop(x, y, ring.DistributedOptimizer(optimizer)),
        False,
    ),
    "optimizer in another": (
        lambda x, y, optimizer: loop(
            x,
            y,
            ring.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer)),
        ),
        False,
    ),
    "far apart": (
        lambda x, y, optimizer: loop(x, y, ring.DiLoCo(optimizer, sync_every=2)),
        False,
    ),
}


def own_steps_worker():
    found = {}
    for case, (train, _) in OWN_STEPS.items():
        ring.init()
        mine = ring.data.shard(tuple(array[:16] for array in training.arrays()))
        with LogTexts() as found[case]:
            train(*map(tf.constant, mine), keras.optimizers.SGD(0.01))
        ring.shutdown()
    return found


@pytest.mark.slow
def test_updates_that_no_rank_has_averaged_are_told_of():
    first, second = run_ranks(own_steps_worker, 2)

    assert not any(second.values())
    lone = {case for case, (_, is_lone) in OWN_STEPS.items() if is_lone}
    assert {case for case, texts in first.items() if texts} == lone
    for case in lone:
        (text,) = first[case]
        assert "[rk651] optimizer 'sgd" in text.lower()  # Keras 3.7: SGD.
        assert "applies gradients that the ranks have not averaged" in text


def adapting_worker():
    x = np.arange(12.0, dtype=np.float32)
    words = tf.data.Dataset.from_tensor_slices(["a", "b", "c", "d"])
    with LogTexts() as texts:
        keras.layers.Normalization(axis=None).adapt(x)
        keras.layers.TextVectorization(name="of_all").adapt(words.batch(2))
        keras.layers.Normalization(axis=None, name="of_x").adapt(ring.data.shard(x))
        part = ring.data.shard(words).map(tf.strings.upper).batch(2)
        keras.layers.TextVectorization(name="of_words").adapt(part)
    return texts


def test_layers_that_learn_from_a_part_are_told_of(rank_pool):
    texts, others = rank_pool(2).run(adapting_worker)

    assert others == []
    assert ["'of_x'" in texts[0], "'of_words'" in texts[1]] == [True, True]
    assert all("[RK654]" in text for text in texts)


def plain():
    model = training.build(1)
    model.compile(keras.optimizers.SGD(0.01), "mse")
    return model


def asks_its_rank():
    """As a tuner does, of which each rank tries another rate."""
    model = plain()
    model.optimizer.learning_rate = 0.01 * (1 + ring.rank())
    return model, {}


def has_sets_of_one():
    alone = [ring.add_process_set([rank]) for rank in (0, 1)]
    assert sum(one.included() for one in alone) == 1
    return plain(), {}


def averages_in_its_step():
    model = TapeModel()
    model.compile(keras.optimizers.SGD(0.01), "mse")
    return model, {}


def has_an_optimizer_of_ours():
    model = plain()
    model.compile(ring.DistributedOptimizer("sgd"), "mse")
    return model, {}


def has_asked_others():
    model = plain()
    ring.broadcast_variables(model.weights)
    return model, {}


JOINED = {
    "init() alone": lambda: (plain(), {}),
    "rank": asks_its_rank,
    "sets": has_sets_of_one,
    "tape": averages_in_its_step,
    "optimizer": has_an_optimizer_of_ours,
    "callback": lambda: (plain(), {"callbacks": [ring.callbacks.Distributed()]}),
    "collective": has_asked_others,
}


def joined_worker():
    """Fits in jobs of which nothing else is used, on data of each rank's own."""
    found = {}
    for case, make in JOINED.items():
        ring.shutdown()
        ring.init()
        model, arguments = make()
        x, y = (array[:16] for array in training.arrays())
        if case not in ("init() alone", "rank"):
            x, y = (array[ring.rank() :: 2] for array in (x, y))
        with LogTexts() as found[case]:
            for _ in range(2):
                model.fit(x, y, verbose=0, **arguments)
    return found


def test_a_script_that_only_joins_is_told_once(rank_pool) -> None:
    first, second = rank_pool(2).run(joined_worker)

    [text] = first.pop("init() alone")
    assert "[RK652] each of the 2 ranks trains model" in text
    assert "ring_keras.callbacks.Distributed()" in text
    assert not any(first.values())
    assert not any(second.values())


class SlowlySaved(keras.layers.Layer):
    """Is saved once all ranks save it, and only then."""

    def build(self, shape):
        self.weight = self.add_weight(shape=(100_000,), initializer="ones")

    def call(self, x):
        return x

    def save_own_variables(self, store):
        ring.barrier()
        super().save_own_variables(store)
        ring.barrier()


def checkpointing_worker(directory, is_divided):
    """What is told where each rank saves a model of its own to one path."""
    ring.shutdown()
    ring.init()
    data = tuple(array[:16] for array in training.arrays())
    if is_divided:
        data = ring.data.shard(data)
    checkpoint = keras.callbacks.ModelCheckpoint(str(Path(directory, "model.keras")))
    model = keras.Sequential([keras.Input((6,)), SlowlySaved(name="slow")])
    model.add(keras.layers.Dense(1))
    model.compile("sgd", "mse")
    with LogTexts() as texts:
        model.fit(*data, epochs=2, verbose=0, callbacks=[checkpoint])
    return texts


@pytest.mark.parametrize("is_divided", [False, True])
def test_a_checkpoint_of_each_rank_is_told_of_once(rank_pool, tmp_path, is_divided):
    arguments = (str(tmp_path), is_divided)
    first, second = rank_pool(2).run(checkpointing_worker, args=arguments)

    [text] = first
    assert ("[RK651]" if is_divided else "[RK652]") in text
    assert "data, and saves it by its ModelCheckpoint" in text
    assert second == []


def saving_worker(directory, suffix, alike):
    ring.shutdown()
    ring.init()  # It is said once in a job.
    keras.utils.clear_session(free_memory=False)
    model = keras.Sequential([keras.Input((6,)), SlowlySaved(name="slow")])
    model.build()
    model.layers[0].weight.assign(np.full(100_000, 1.0 + ring.rank()))
    place = Path(directory, "" if alike else str(ring.rank()))
    place.mkdir(exist_ok=True)
    path = str(place / f"model{suffix}")
    save = model.save_weights if suffix.startswith(".weights") else model.save
    with LogTexts() as texts:
        save(path)
    ring.barrier()
    model.load_weights(path)
    weight = model.layers[0].weight.numpy()
    assert len(set(weight.tolist())) == 1, "that of one rank"
    return texts, sorted(file.name for file in place.iterdir())


@pytest.mark.parametrize("suffix", [".keras", ".weights.h5"])
def test_a_model_that_all_ranks_save_is_whole(rank_pool, tmp_path, suffix) -> None:
    results = rank_pool(2).run(saving_worker, args=(str(tmp_path), suffix, True))

    texts = [text for texts, _ in results for text in texts]
    assert texts
    for text in texts:
        assert "[RK653] rank " in text
        assert f"has saved '{tmp_path}" in text
        assert "if ring_keras.rank() == 0" in text
        assert "where the optimizer is distributed" in text
    assert [names for _, names in results] == [[f"model{suffix}"]] * 2


def test_a_model_of_each_rank_is_saved_without_a_word(rank_pool, tmp_path) -> None:
    results = rank_pool(2).run(saving_worker, args=(str(tmp_path), ".keras", False))

    assert results == [([], ["model.keras"])] * 2


def one_rank_worker():
    x, y = (array[:16] for array in training.arrays())
    return told(ring.data.shard((x, y)))


def test_a_job_of_one_rank_is_not_told(rank_pool) -> None:
    assert rank_pool(1).run(one_rank_worker) == [[]]


def without_init_worker():
    ring.shutdown()
    x, y = (array[:16] for array in training.arrays())
    model = training.build(1)
    model.compile("sgd", "mse")
    with pytest.raises(ring.NotInitializedError, match=r"init\(\)"):
        model.fit(x, y, verbose=0, callbacks=[ring.callbacks.Distributed()])


def test_a_callback_is_no_use_before_init() -> None:
    run_ranks(without_init_worker, 1)


def warned_of_order_worker() -> list[str]:
    """What `fit` says of data that `shard` shuffles."""
    x, y = (array[:16] for array in training.arrays())
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        part = ring.data.shard(tf.data.Dataset.from_tensor_slices((x, y)), seed=1)
        told(part, distributed=True)
    return [str(one.message) for one in found]


def test_nobody_is_told_that_the_order_of_shard_is_no_order(rank_pool) -> None:
    for texts in rank_pool(2).run(warned_of_order_worker):
        assert [text for text in texts if "shuffle" in text] == []
