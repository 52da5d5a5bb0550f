"""A callback that trains beside the batches of a `fit`, while a rank may stop."""

from __future__ import annotations

import keras
import pytest
from support import training
from support.variants import variants

import ring_keras as ring


class Stops(keras.callbacks.Callback):
    """After an execution, on one rank; notes of which ones callbacks have heard."""

    def __init__(self, execution, is_mine, steps=1):
        super().__init__()
        self.execution = execution
        self.is_mine = is_mine
        self.steps = steps
        self.heard = []

    def on_train_batch_begin(self, batch, logs=None):
        self.heard.append(("begin", batch // self.steps))

    def on_train_batch_end(self, batch, logs=None):
        # Before Keras 3.11 it is told the first batch of the execution.
        self.heard.append(("end", batch // self.steps))
        if self.is_mine and self.heard[-1][1] == self.execution:
            self.model.stop_training = True


MOMENTS = ("on_train_batch_begin", "on_train_batch_end")


def trains_at(moment, model, way="train_on_batch"):
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


def everything(*_):
    return True


def data_of(kind):
    """This rank's batches: eight, or more on the second rank where `kind` joins."""
    count = 8 * training.BATCH * ring.size()
    if kind == "joined":
        data = training.dataset(count).batch(training.BATCH)
        return ring.data.join(data.repeat(1 + ring.rank()))
    data = training.dataset(count)
    if kind == "unknown":
        data = data.filter(everything)
    return ring.data.shard(data).batch(training.BATCH)


def model_of(seed, steps_per_execution):
    optimizer = ring.DistributedOptimizer(training.OPTIMIZERS["sgd"]())
    return training.compile_model(
        training.build(seed), optimizer, steps_per_execution=steps_per_execution
    )


def stopping_worker(kind, steps, own, way):
    """Trains beside batches until a rank stops, then all train once more."""
    data = data_of(kind)
    model = model_of(1, steps)
    other = model if own else training.distributed_model(2)
    stops = Stops(4 // steps - 1, ring.rank() == 1, steps)
    trainers = [trains_at(moment, other, way) for moment in MOMENTS]
    model.fit(data, epochs=2, shuffle=False, verbose=0, callbacks=[stops, *trainers])
    assert model.stop_training
    weights = [one.get_weights() for one in (model, other)]
    training.fit(model, ring.data.shard(training.dataset(16)), 4)
    return stops.heard, weights, training.as_bytes(model.get_weights())


def in_one_process(steps, own, way):
    """The same on global batches."""
    kwargs = {"steps_per_execution": steps}
    sgd = training.OPTIMIZERS["sgd"]
    model = training.compile_model(training.build(1), sgd(), **kwargs)
    other = model
    if not own:
        other = training.compile_model(training.build(2), sgd())
    trainers = [trains_at(moment, other, way) for moment in MOMENTS]
    training.fit(
        model,
        training.dataset(64),
        8,
        callbacks=[Stops(4 // steps - 1, True, steps), *trainers],
    )
    return [one.get_weights() for one in (model, other)]


@pytest.mark.parametrize(
    ("kind", "steps", "own", "way"),
    variants(
        [
            ("known", 2, True, "train_on_batch"),
            ("joined", 1, False, "fit"),
            ("unknown", 1, False, "train_on_batch"),
        ],
        [
            (kind, steps, own, "train_on_batch")
            for kind in ("known", "joined", "unknown")
            for steps in (1, 2)
            for own in (True, False)
        ],
    ),
)
def test_callbacks_hear_of_the_same_batches_and_train_where_a_rank_stops(
    rank_pool, kind, steps, own, way
):
    first, second = rank_pool(2).run(stopping_worker, args=(kind, steps, own, way))

    heard, weights, after = first
    assert heard == [
        (event, execution)
        for execution in range(4 // steps)
        for event in ("begin", "end")
    ]
    assert second[0] == heard
    assert second[2] == after
    for ours, theirs in zip(weights, second[1], strict=True):
        assert training.as_bytes(ours) == training.as_bytes(theirs)
    if kind == "joined":
        return  # Both ranks have the same examples: none to compare with.
    for ours, one in zip(weights, in_one_process(steps, own, way), strict=True):
        assert training.largest_difference(ours, one) < 1e-6


def ending_first_worker(known):
    """The second rank's data end first, and all would train beside the next batch."""
    model, other = (training.distributed_model(seed) for seed in (1, 2))
    data = training.dataset(4 * 4 - 4 * ring.rank())
    if not known:
        data = data.filter(everything)
    with pytest.raises(ring.RankMismatchError) as caught:
        model.fit(
            data.batch(4),
            steps_per_epoch=4,
            verbose=0,
            callbacks=[trains_at(moment, other) for moment in MOMENTS],
        )
    training.fit(model, ring.data.shard(training.dataset(16)), 4)
    return str(caught.value), training.as_bytes(model.get_weights())


@pytest.mark.parametrize("known", variants([False], [True]))
def test_training_beside_a_batch_that_one_rank_does_not_have_is_refused(
    rank_pool, known
):
    first, second = rank_pool(2).run(ending_first_worker, args=(known,))

    assert first == second
    assert "[RK318] fit(): after 3 steps of the epoch ranks [1] have run" in first[0]


class Fails(keras.callbacks.Callback):
    """On the second rank, where all ranks begin the batch."""

    def on_train_batch_begin(self, batch, logs=None):
        if ring.rank() == 1 and batch == 2:
            raise OSError("no disk")


def failing_worker(sync_every):
    optimizer = keras.optimizers.SGD(0.1)
    optimizer = ring.DistributedOptimizer(optimizer, sync_every=sync_every)
    model = training.compile_model(training.build(1), optimizer)
    data = ring.data.shard(training.dataset(8 * 4 * ring.size()))
    with pytest.raises(Exception) as caught:
        training.fit(model, data, 4, callbacks=[Fails()])
    training.fit(model, data, 4)
    return repr(caught.value), training.as_bytes(model.get_weights())


@pytest.mark.parametrize("sync_every", variants([1], [4]))
def test_a_callback_that_fails_as_a_batch_begins_is_told(rank_pool, sync_every):
    (told, weights), (failed, others) = rank_pool(2).run(
        failing_worker, args=(sync_every,)
    )

    assert "no disk" in failed
    assert "[RK310]" in told
    assert "no disk" in told
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
            Stops(1, ring.rank() == 1),
            trains_at("on_train_batch_end", other),
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
    callbacks = [trains_at(moment, one) for moment in MOMENTS for one in (model, other)]
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
        callbacks=[trains_at("on_test_batch_end", other)],
        validation_data=training.dataset(12).batch(4),
    )
    return int(other.optimizer.iterations), training.as_bytes(other.get_weights())


def test_training_beside_a_validation(rank_pool):
    first, second = rank_pool(2).run(validating_worker)

    assert first == second
    assert first[0] == 2
