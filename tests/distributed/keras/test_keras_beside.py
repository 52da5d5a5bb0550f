"""A callback that trains beside the batches of a `fit`, while a rank may stop."""

from __future__ import annotations

import keras
import pytest
from support import training
from support.variants import variants

import ring_keras as ring


class StopsSecondRank(keras.callbacks.Callback):
    """After its second batch."""

    def on_train_batch_end(self, batch, logs=None):
        if ring.rank() == 1 and batch == 1:
            self.model.stop_training = True


def trains_at(moment, model, way):
    """A callback that has that model train a little, at each batch but the first."""
    x, y = training.arrays()

    def train(batch, logs=None):
        if batch == 0:
            return
        if way == "train_on_batch":
            model.train_on_batch(x[:4], y[:4])
        else:
            model.fit(x[:4], y[:4], batch_size=4, verbose=0)

    callback = keras.callbacks.Callback()
    setattr(callback, moment, train)
    return callback


def stopping_worker(own, way):
    model = training.distributed_model(1)
    other = model if own else training.distributed_model(2)
    with pytest.raises(Exception) as caught:
        training.fit(
            model,
            ring.data.shard(training.dataset(4 * 4 * ring.size())),
            4,
            callbacks=[
                StopsSecondRank(),
                trains_at("on_train_batch_begin", other, way),
            ],
        )
    # All train again who have been told.
    training.fit(model, ring.data.shard(training.dataset(16)), 4)
    return str(caught.value), training.as_bytes(model.get_weights())


@pytest.mark.parametrize(
    ("own", "way"),
    variants([(True, "train_on_batch")], [(False, "train_on_batch"), (False, "fit")]),
)
def test_training_beside_a_batch_that_another_rank_does_not_take_is_refused(
    rank_pool, own, way
):
    (error, weights), (told, others) = rank_pool(2).run(
        stopping_worker, args=(own, way)
    )

    assert error.startswith("[RK609] a callback of fit() trains beside a batch that")
    assert "[RK310]" in told
    assert "[RK609]" in told
    assert weights == others


class Counts(keras.callbacks.Callback):
    """How often a batch has ended."""

    def __init__(self):
        super().__init__()
        self.ended = 0

    def on_train_batch_end(self, batch, logs=None):
        self.ended += 1


def ending_worker(directory, shard_state):
    """Callbacks after each batch that train, and save, where a rank stops."""
    optimizer = keras.optimizers.Adam(0.01)
    optimizer = ring.DistributedOptimizer(optimizer, shard_state=shard_state)
    model = training.compile_model(training.build(1), optimizer)
    counts, other = Counts(), training.distributed_model(2)
    saves = keras.callbacks.ModelCheckpoint(f"{directory}/{{epoch}}.keras", save_freq=1)
    training.fit(
        model,
        ring.data.shard(training.dataset(4 * 4 * ring.size())),
        4,
        callbacks=[
            StopsSecondRank(),
            trains_at("on_train_batch_end", other, "train_on_batch"),
            saves,
            counts,
        ],
    )
    steps = [int(one.optimizer.iterations) for one in (model, other)]
    weights = [training.as_bytes(one.get_weights()) for one in (model, other)]
    return counts.ended, steps, weights


@pytest.mark.parametrize("shard_state", variants([True], [False]))
def test_no_batch_ends_that_was_none(rank_pool, tmp_path, shard_state):
    first, second = rank_pool(2).run(ending_worker, args=(str(tmp_path), shard_state))

    assert first == second
    assert first[:2] == (2, [2, 1])


def training_worker(uneven):
    """All train beside all batches, of data that may end sooner on one rank."""
    model, other = (training.distributed_model(seed) for seed in (1, 2))
    callbacks = [
        trains_at(moment, one, "train_on_batch")
        for moment in ("on_train_batch_begin", "on_train_batch_end")
        for one in (model, other)
    ]
    data = training.dataset(8 + 8 * (ring.rank() if uneven else 1)).batch(4)
    if uneven:
        data = ring.data.join(data)
    model.fit(data, epochs=2, verbose=0, callbacks=callbacks)
    steps = [int(one.optimizer.iterations) for one in (model, other)]
    return steps, [training.as_bytes(one.get_weights()) for one in (model, other)]


@pytest.mark.parametrize("uneven", variants([True], [False]))
def test_training_beside_batches_that_all_ranks_take(rank_pool, uneven):
    first, second = rank_pool(2).run(training_worker, args=(uneven,))

    assert first == second
    # Four batches in two epochs, each but the first of its epoch with two beside.
    assert first[0][1] == 12


def validating_worker():
    """Trains where nobody takes steps."""
    model, other = (training.distributed_model(seed) for seed in (1, 2))
    training.fit(
        model,
        ring.data.shard(training.dataset(16)),
        4,
        callbacks=[trains_at("on_test_batch_end", other, "train_on_batch")],
        validation_data=training.dataset(12).batch(4),
    )
    return int(other.optimizer.iterations), training.as_bytes(other.get_weights())


def test_training_beside_a_validation(rank_pool):
    first, second = rank_pool(2).run(validating_worker)

    assert first == second
    assert first[0] == 2
