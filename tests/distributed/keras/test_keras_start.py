"""All ranks start alike, and none trains alone."""

from __future__ import annotations

import functools

import keras
import pytest
from support import training
from support.features.directory import common_directory
from support.log_texts import LogTexts
from support.variants import variants

import ring_keras as ring


class FirstWeights(keras.callbacks.Callback):
    """The weights after step 1, with a rate of 0: those that it ran with."""

    def __init__(self):
        super().__init__()
        self.weights = None

    def on_train_batch_end(self, batch, logs=None):
        if self.weights is None:
            self.weights = training.as_bytes(self.model.get_weights())


def first_step_worker(root):
    rank = ring.rank()
    model = training.build(1 + rank, built=False)
    optimizer = keras.optimizers.SGD(0.0 if rank == root else 9.0, momentum=0.9)
    training.compile_model(model, ring.DistributedOptimizer(optimizer))
    first = FirstWeights()
    training.fit(
        model,
        ring.data.shard(training.dataset(32)),
        4,
        callbacks=[first, ring.callbacks.BroadcastGlobalVariables(root_rank=root)],
    )
    expected = training.build(1 + root)
    expected.build((None, 6))
    return first.weights == training.as_bytes(expected.get_weights())


def test_the_first_step_runs_with_the_roots_weights(rank_pool):
    assert rank_pool(2).run(first_step_worker, args=(1,)) == [True, True]


class Assigns(keras.Model):
    """Never passes its gradients to an optimizer."""

    def train_step(self, data):
        for variable in self.trainable_variables:
            variable.assign_sub(0.1 * variable)
        return {"nothing": keras.ops.zeros(())}


def lone_worker():
    """Three ways to train alone, and the message each gets."""
    messages = []
    for callback in (ring.callbacks.MetricAverage(), None):
        model = training.build(1, None if callback else Assigns)
        training.compile_model(model, keras.optimizers.SGD(0.1))
        with pytest.raises(ring.RingKerasError) as caught:
            training.fit(
                model,
                training.dataset(8),
                4,
                callbacks=[callback or ring.callbacks.BroadcastGlobalVariables()],
            )
        messages.append(str(caught.value))
    # A loaded model's optimizer is an ordinary one: BroadcastGlobalVariables
    # makes it a distributed one.
    model = training.distributed_model(1)
    model.build((None, 6))
    loaded = keras.models.clone_model(model)
    loaded.compile_from_config(model.get_compile_config())
    training.fit(
        loaded,
        ring.data.shard(training.dataset(8)),
        4,
        callbacks=[ring.callbacks.BroadcastGlobalVariables()],
    )
    return messages, training.as_bytes(loaded.get_weights())


def test_a_step_that_communicates_nothing_raises(rank_pool):
    results = rank_pool(2).run(lone_worker)

    for messages, _ in results:
        for message in messages:
            assert "alone" in message
            assert "DistributedOptimizer" in message
    assert results[0][1] == results[1][1]


class Epochs(keras.callbacks.Callback):
    """The epochs that are run."""

    def __init__(self):
        super().__init__()
        self.run = []

    def on_epoch_end(self, epoch, logs=None):
        self.run.append(epoch)


class RestoresEpoch(keras.callbacks.Callback):
    """As BackupAndRestore does, on the one rank that has the file."""

    def on_train_begin(self, logs=None):
        if ring.rank() == 0:
            self.model._initial_epoch = 2


def initial_epoch_worker(broadcast_last):
    model = training.distributed_model(1)
    broadcast = ring.callbacks.BroadcastGlobalVariables()
    ordered = [RestoresEpoch(), broadcast]
    epochs = Epochs()
    training.fit(
        model,
        ring.data.shard(training.dataset(8)),
        4,
        epochs=5,
        callbacks=[*(ordered if broadcast_last else ordered[::-1]), epochs],
    )
    return epochs.run


@pytest.mark.parametrize(
    "broadcast_last", [True, pytest.param(False, marks=pytest.mark.slow)]
)
def test_all_ranks_begin_with_the_roots_epoch(rank_pool, broadcast_last):
    results = rank_pool(2).run(initial_epoch_worker, args=(broadcast_last,))

    assert results == [[2, 3, 4]] * 2


def restored_worker(root, in_root_only):
    """A rank goes on from a backup, and all begin with the root's state."""
    with common_directory() as directory:
        fit_with_backup(directory, 1, 0, in_root_only)
        return fit_with_backup(directory, 2, root, in_root_only)


def fit_with_backup(directory, epochs, root, in_root_only):
    ran = Epochs()
    backup = keras.callbacks.BackupAndRestore(directory, delete_checkpoint=False)
    with LogTexts() as texts:
        training.fit(
            training.distributed_model(1),
            ring.data.shard(training.dataset(8)),
            4,
            epochs=epochs,
            callbacks=[
                ring.callbacks.RootOnly(backup) if in_root_only else backup,
                ring.callbacks.BroadcastGlobalVariables(root),
                ran,
            ],
        )
    return ran.run, [text for text in texts if "RK680" in text]


def test_a_rank_that_is_ahead_of_the_root_says_what_is_lost(rank_pool):
    (first, told), other = rank_pool(2).run(restored_worker, args=(1, True))
    assert (first, other) == ([0, 1], ([0, 1], []))
    assert "rank 0 begins fit() after 1 steps of training" in told[0]
    assert "all ranks take the state of rank 1, which has taken 0" in told[0]


@pytest.mark.parametrize(("root", "in_root_only"), [(0, True), (1, False)])
def test_the_root_restores_a_backup(rank_pool, root, in_root_only):
    results = rank_pool(2).run(restored_worker, args=(root, in_root_only))

    assert results == [([1], [])] * 2


def own_list_worker():
    """A list of callbacks that the user keeps, for two fits."""
    model = training.distributed_model(1)
    epochs = Epochs()
    broadcast = ring.callbacks.BroadcastGlobalVariables()
    kept = keras.callbacks.CallbackList(
        [broadcast, RestoresEpoch(), epochs],
        add_history=True,
        model=model,
        epochs=4,
        steps=1,
    )
    for _ in range(2):
        data = ring.data.shard(training.dataset(4))
        training.fit(model, data, 4, epochs=4, callbacks=kept)
    return epochs.run, len(kept.callbacks)


def test_a_list_of_callbacks_is_used_twice(rank_pool):
    assert rank_pool(2).run(own_list_worker) == [([2, 3, 2, 3], 8)] * 2


def uneven_steps_worker():
    model = training.distributed_model(1)
    with pytest.raises(ring.RankMismatchError) as caught:
        training.fit(
            model,
            training.dataset(8 + 4 * ring.rank()),
            4,
            callbacks=[ring.callbacks.BroadcastGlobalVariables()],
        )
    return str(caught.value)


def test_different_numbers_of_steps_are_refused(rank_pool):
    for message in rank_pool(2).run(uneven_steps_worker):
        assert "rank 0 has 2, rank 1 has 3" in message
        assert "ring_keras.data.shard()" in message


def other_arguments_worker(name, theirs, ours):
    """Rank 1 has another value, which `fit` may not even take; then all train."""
    value = ours if ring.rank() == 1 else theirs
    in_compile = {"steps_per_execution"} & {name}
    model = training.compile_model(
        training.build(1),
        ring.DistributedOptimizer("sgd"),
        **({name: value} if in_compile else {}),
    )
    part = ring.data.shard(training.dataset(48))
    options = {"epochs": 2, "validation_data": part.batch(4)}
    with pytest.raises(ring.RankMismatchError) as caught:
        training.fit(model, part, 4, **options | ({} if in_compile else {name: value}))
    training.fit(training.distributed_model(1), part, 4)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "theirs", "ours"),
    variants(
        [("epochs", 2, 3)],
        [
            ("steps_per_execution", 1, 2),
            ("epochs", 2, "no number"),
            ("class_weight", {0: 1.0, 1: 2.0}, {0: 1.0, 1: 2.5}),
            ("validation_freq", 1, 2),
        ],
    ),
)
def test_other_arguments_of_one_rank_are_refused(rank_pool, name, theirs, ours):
    worker = functools.partial(other_arguments_worker, name, theirs, ours)
    for message in rank_pool(2).run(worker, timeout_s=60):
        assert message.startswith("[RK326] "), message
        assert f"rank 0 has {theirs}, rank 1 has {ours}" in message
        assert f"Give every rank the same {name} " in message


def other_losses_worker():
    """Rank 1's loss adds up its batch, so its step asks for all ranks' examples."""
    reduction = "sum" if ring.rank() == 1 else "sum_over_batch_size"
    model, part = training.build(1), ring.data.shard(training.dataset(48))
    model.compile(
        ring.DistributedOptimizer("sgd"),
        keras.losses.BinaryCrossentropy(reduction=reduction),
    )
    with pytest.raises(ring.RankMismatchError, match=r"\[RK326\].* rank 1 has 1"):
        training.fit(model, part, 4)
    training.fit(training.distributed_model(1), part, 4)


def test_losses_that_add_up_on_one_rank_are_refused(rank_pool):
    rank_pool(2).run(other_losses_worker, timeout_s=60)


def other_terms_worker(what):
    """Rank 1's optimizer would reduce, or meet, after other steps; then all train."""
    is_odd = ring.rank() == 1
    sgd = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2 + is_odd)
    averaged = keras.optimizers.SGD(
        0.1, use_ema=True, ema_overwrite_frequency=2 + is_odd
    )
    model, part = training.build(1), ring.data.shard(training.dataset(48))
    optimizer = {
        "gradient_accumulation_steps": ring.DistributedOptimizer(sgd),
        "ema_overwrite_frequency": ring.DistributedOptimizer(
            averaged, shard_state=True
        ),
        "sync_every": ring.DiLoCo(keras.optimizers.SGD(0.1), sync_every=2),
    }[what]
    training.compile_model(model, optimizer)
    if what == "sync_every":  # Changed after the ranks have agreed once.
        training.fit(model, part, 4)
        optimizer.sync_every = 2 + is_odd
        training.compile_model(model, optimizer)
    with pytest.raises(ring.RankMismatchError) as caught:
        training.fit(model, part, 4)
    training.fit(training.distributed_model(1), part, 4)
    return str(caught.value)


@pytest.mark.parametrize(
    "what",
    variants(
        ["gradient_accumulation_steps"], ["ema_overwrite_frequency", "sync_every"]
    ),
)
def test_optimizers_that_would_wait_for_others_are_refused(rank_pool, what):
    for message in rank_pool(2).run(other_terms_worker, args=(what,), timeout_s=60):
        assert message.startswith("[RK342] "), message
        assert f"{what} differs across ranks: rank 0 has 2, rank 1 has 3" in message


def unknown_steps_worker():
    """Rank 1 does not know its number of steps, which is another one."""
    model = training.distributed_model(1)
    data = training.dataset(8 + 4 * ring.rank())
    if ring.rank() == 1:
        data = data.filter(lambda *_: True)
    with pytest.raises(ring.RankMismatchError) as caught:
        training.fit(
            model, data, 4, callbacks=[ring.callbacks.BroadcastGlobalVariables()]
        )
    return str(caught.value)


def test_one_known_and_one_unknown_number_of_steps(rank_pool):
    first, second = rank_pool(2).run(unknown_steps_worker)

    assert first == second
    assert "after 2 steps" in first
    assert "ranks [0] have run out of data, ranks [1] have more" in first
