"""Training that was interrupted in the middle of an epoch goes on from there."""

from __future__ import annotations

import functools

import keras
import pytest
import tensorflow as tf
from support import training

import ring_keras as ring
from ring_keras import keras_internals as internals

COUNT = 34
EPOCHS = 3


class Interrupt(keras.callbacks.Callback):
    """Ends training after so many steps, with an exception as a crash would."""

    def __init__(self, steps):
        super().__init__()
        self.steps = steps

    def on_train_batch_end(self, batch, logs=None):
        if internals.steps_done(self.model.optimizer) >= self.steps:
            raise KeyboardInterrupt


def with_steps_to_skip(dataset):
    """Examples of which some make the scaled loss overflow."""

    def huge(number, batch):
        x, y = batch
        return x, tf.where(number % 20 == 5, 3e38, y)

    return dataset.enumerate().map(huge)


def train(directory, optimizer, interrupt_after=None, per_execution=1, pad=False):
    model = training.build(3)
    model.build((None, 6))
    training.compile_model(
        model, training.OPTIMIZERS[optimizer](), steps_per_execution=per_execution
    )
    resume = ring.data.Resume()
    dataset = training.dataset(COUNT)
    if optimizer == "loss_scaled":
        dataset = with_steps_to_skip(dataset)
    part = ring.data.shard(
        dataset,
        seed=1,
        resume=resume,
        remainder="pad" if pad else "drop",
    )
    callbacks = [
        resume,
        ring.callbacks.BroadcastGlobalVariables(),
        ring.callbacks.MetricAverage(),
    ]
    if ring.rank() == 0:
        callbacks.insert(
            0, keras.callbacks.BackupAndRestore(directory, save_freq=2 * per_execution)
        )
    if interrupt_after is not None:
        callbacks.append(Interrupt(interrupt_after))
    history = training.fit(
        model, part, training.BATCH, epochs=EPOCHS, callbacks=callbacks
    )
    return training.as_bytes(model.get_weights()), history


def resume_worker(directory, stops, **kwargs):
    whole, history = train(f"{directory}/whole", **kwargs)
    for stop in stops:
        with pytest.raises(KeyboardInterrupt):
            train(f"{directory}/parts", interrupt_after=stop, **kwargs)
        # What the other ranks had is gone, as it is after a crash.
        keras.utils.set_random_seed(100 + ring.rank())
    keras.utils.set_random_seed(3)
    resumed, later = train(f"{directory}/parts", **kwargs)
    return whole == resumed, whole, history["loss"][-1], later["loss"][-1]


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    ("optimizer", "per_execution", "pad"),
    [
        ("adam", 1, False),
        ("accumulation", 1, True),
        ("sgd", 2, False),
        ("loss_scaled", 1, False),
    ],
)
def test_a_resumed_run_ends_like_one_that_was_never_interrupted(
    rank_pool, tmp_path, size, optimizer, per_execution, pad
):
    steps = COUNT // size // training.BATCH
    worker = functools.partial(
        resume_worker,
        str(tmp_path),
        # In the middle of an epoch, and at the end of one.
        stops=[3, 2 * steps],
        optimizer=optimizer,
        per_execution=per_execution,
        pad=pad,
    )
    results = rank_pool(size).run(worker, timeout_s=170)

    assert all(equal for equal, *_ in results)
    assert len({weights for _, weights, _, _ in results}) == 1


def train_from(directory, root_rank, resume_root, interrupt_after=None):
    keras.utils.set_random_seed(1)
    model = training.build(3)
    training.compile_model(model, keras.optimizers.Adam(0.01))
    resume = ring.data.Resume(root_rank=resume_root)
    part = ring.data.shard(training.dataset(32), seed=1, resume=resume)
    callbacks = [
        ring.callbacks.Distributed(root_rank=root_rank),
        keras.callbacks.BackupAndRestore(directory, save_freq=1),
        resume,
    ]
    if interrupt_after is not None:
        callbacks.append(Interrupt(interrupt_after))
    training.fit(model, part, training.BATCH, epochs=EPOCHS, callbacks=callbacks)
    return training.as_bytes(model.get_weights()), int(model.optimizer.iterations)


def other_root_worker(directory):
    whole = train_from(f"{directory}/whole", 1, None)
    with pytest.raises(KeyboardInterrupt):
        train_from(f"{directory}/parts", 1, None, interrupt_after=6)
    resumed = train_from(f"{directory}/parts", 1, None)
    said = []
    for given in (0, 1):
        with pytest.raises(ValueError, match="Leave root_rank out") as caught:
            train_from(f"{directory}/other", 1 - given, given)
        said.append(str(caught.value))
    return whole, resumed, said


def test_the_place_is_that_of_the_rank_whose_weights_all_take(rank_pool, tmp_path):
    results = rank_pool(2).run(other_root_worker, args=(str(tmp_path),), timeout_s=120)

    for whole, resumed, said in results:
        assert whole == resumed == results[0][0]
        assert "rank 0 is, with weights and state of rank 1" in said[0]
        assert "rank 1 is, with weights and state of rank 0" in said[1]


def unknown_steps_worker(directory):
    model = training.compile_model(training.build(3), keras.optimizers.Adam(0.01))
    dataset = training.dataset(24).filter(lambda *_: True)
    resume = ring.data.Resume()
    training.fit(model, dataset, training.BATCH, callbacks=[resume])
    with pytest.raises(ValueError, match="must know the number of steps"):
        training.fit(model, dataset, training.BATCH, callbacks=[resume])
    with pytest.raises(ValueError, match="takes a seed"):
        ring.data.shard(dataset, resume=resume)
    with pytest.raises(TypeError, match="from_tensor_slices"):
        ring.data.shard(training.arrays(), seed=1, resume=resume)


def test_what_cannot_be_resumed_is_told(rank_pool, tmp_path):
    rank_pool(1).run(functools.partial(unknown_steps_worker, str(tmp_path)))


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        return tuple(array[4 * index : 4 * index + 4] for array in training.arrays())


def lost_orders_worker():
    """What each kind of data says that a new process would pass over in another way."""
    resume = ring.data.Resume()
    items = training.dataset(24)

    def shard(data, **options):
        return ring.data.shard(data, seed=1, resume=resume, **options)

    datasets = {
        "shuffled behind": shard(items).shuffle(9, seed=1).batch(2),
        "shuffled before": ring.data.shard(items.shuffle(9, seed=1)).batch(2),
        "unseeded": shard(items).shuffle(9, reshuffle_each_iteration=False).batch(2),
        "cached": shard(items).cache().batch(2),
        "endless": shard(items).batch(2).repeat(),
        "by Keras": shard(Batches()),
        "arrays": training.arrays()[0],
    }
    said = {}
    for name, data in datasets.items():
        model = training.compile_model(training.build(3), keras.optimizers.SGD(0.1))
        options = {"steps_per_epoch": 3} if name == "endless" else {}
        if name == "arrays":
            options = {"y": training.arrays()[1]}
        with pytest.raises(ValueError) as caught:
            model.fit(data, callbacks=[resume], verbose=0, **options)
        assert int(model.optimizer.iterations) == 0
        said[name] = str(caught.value)
    shard(items.shuffle(9, seed=1).cache())  # It keeps the order that a seed gives.
    with pytest.raises(ValueError) as caught:
        shard(items.shuffle(9, seed=1))
    said["given"] = str(caught.value)
    with pytest.raises(ValueError) as caught:
        model.fit(shard(items).batch(2), callbacks=[resume], verbose=0, initial_epoch=1)
    said["initial_epoch"] = str(caught.value)
    return said


def test_an_order_that_a_new_process_does_not_know_is_refused(rank_pool):
    for said in rank_pool(2).run(lost_orders_worker):
        assert all(text.startswith("[RK512]") for text in said.values()), said
        assert "reshuffle_each_iteration=False" in said["shuffled behind"]
        assert "Pass the seed to shard()" in said["shuffled before"]
        assert "reshuffle_each_iteration=False" in said["unseeded"]
        assert "keeps the first epoch's order" in said["cached"]
        assert "whole passes" in said["endless"]
        assert "shuffle=False" in said["by Keras"]
        assert "shuffle=False" in said["arrays"]
        assert "leave initial_epoch out" in said["initial_epoch"]


class Restores(keras.callbacks.Callback):
    """Gives the first rank's model a number of steps, as a backup would."""

    def on_train_begin(self, logs=None):
        if ring.rank() == 0:
            self.model.optimizer.iterations.assign(3)


def misplaced_worker(per_execution, is_before):
    model = training.build(3)
    training.compile_model(
        model, training.OPTIMIZERS["sgd"](), steps_per_execution=per_execution
    )
    resume = ring.data.Resume()
    part = ring.data.shard(training.dataset(48), seed=1, resume=resume)
    before = training.as_bytes(model.get_weights())
    callbacks = [Restores(), resume] if is_before else [resume, Restores()]
    with pytest.raises(ValueError) as caught:
        training.fit(model, part, training.BATCH, callbacks=callbacks)
    assert training.as_bytes(model.get_weights()) == before
    return str(caught.value)


@pytest.mark.parametrize(
    ("per_execution", "is_before", "message"),
    [
        (1, False, "after the one that restores the model"),
        (
            2,
            True,
            "cannot continue after 3 steps of an epoch with steps_per_execution=2",
        ),
    ],
)
def test_what_would_train_on_other_items_is_refused_on_all_ranks(
    rank_pool, per_execution, is_before, message
):
    said = rank_pool(2).run(misplaced_worker, args=(per_execution, is_before))

    assert said[0] == said[1]
    assert message in said[0]
