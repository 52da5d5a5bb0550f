"""A rank that stops training stops all of them, after the same step."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import training
from support.variants import variants

import ring_keras as ring


class Steps(keras.callbacks.Callback):
    """How many steps the optimizer has taken at the end of each epoch."""

    def __init__(self):
        super().__init__()
        self.done = []

    def on_epoch_end(self, epoch, logs=None):
        self.done.append(int(self.model.optimizer.iterations))


class StopsOneRank(keras.callbacks.Callback):
    """As a clock, or a signal, does."""

    def __init__(self, rank, batch=None, epoch=0):
        super().__init__()
        self.place = (epoch, batch) if ring.rank() == rank else None
        self.epoch = 0

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if (self.epoch, batch) == self.place:
            self.model.stop_training = True

    def on_epoch_end(self, epoch, logs=None):
        if (epoch, None) == self.place:
            self.model.stop_training = True


def stop_worker(rank, batch, epoch, kept):
    """`kept` is the callback of ours; without it the optimizer is all there is."""
    model = training.distributed_model(1)
    steps = Steps()
    history = training.fit(
        model,
        ring.data.shard(training.dataset(4 * 4 * ring.size())),
        4,
        epochs=4,
        callbacks=[kept(), StopsOneRank(rank, batch, epoch), steps],
    )
    assert model.stop_training
    return steps.done, training.as_bytes(model.get_weights()), list(history)


@pytest.mark.parametrize(
    ("rank", "batch", "epoch", "expected"),
    variants(
        [(0, 2, 1, [4, 7])],
        [
            (1, 0, 0, [1]),
            (1, 3, 0, [4]),  # The last of the epoch.
            (0, None, 1, [4, 8]),
        ],
    ),
)
@pytest.mark.parametrize(
    "kept",
    [
        ring.callbacks.MetricAverage,
        pytest.param(ring.callbacks.BroadcastGlobalVariables, marks=pytest.mark.slow),
    ],
)
def test_all_ranks_stop_in_the_same_step(rank_pool, rank, batch, epoch, expected, kept):
    results = rank_pool(2).run(stop_worker, args=(rank, batch, epoch, kept))

    assert [steps for steps, *_ in results] == [expected] * 2
    assert results[0] == results[1]


def nan_worker():
    """One rank's third batch has a NaN."""
    x, y = training.arrays()
    x = x[: 4 * 6].copy()
    if ring.rank() == 1:
        x[9] = np.nan
    data = tf.data.Dataset.from_tensor_slices((x, y[: 4 * 6])).batch(4)
    model = training.distributed_model(1)
    steps = Steps()
    model.fit(
        data,
        epochs=2,
        verbose=0,
        callbacks=[
            keras.callbacks.TerminateOnNaN(),
            ring.callbacks.BroadcastGlobalVariables(),
            ring.callbacks.MetricAverage(),
            steps,
        ],
    )
    return steps.done


def test_a_nan_on_one_rank_ends_all(rank_pool):
    assert rank_pool(2).run(nan_worker) == [[3], [3]]


class FitsItself(keras.Model):
    """With a loop of its own, in which nothing of Keras's goes through the steps."""

    def fit(self, data, callbacks):
        listed = keras.callbacks.CallbackList(callbacks, model=self, epochs=1, steps=4)
        self.stop_training = False
        self.make_train_function()
        listed.on_train_begin()
        listed.on_epoch_begin(0)
        batches, logs = iter(data), {}
        for batch in range(4):
            listed.on_train_batch_begin(batch)
            logs = self.train_function(batches)
            listed.on_train_batch_end(batch, logs)
            if self.stop_training:
                break
        logs = self._get_metrics_result_or_logs(logs)
        listed.on_epoch_end(0, logs)
        listed.on_train_end(logs)


def own_loop_worker():
    model = training.build(1, FitsItself)
    sgd = training.OPTIMIZERS["sgd"]()
    training.compile_model(model, ring.DistributedOptimizer(sgd))
    data = ring.data.shard(training.dataset(4 * 4 * ring.size())).batch(4)
    model.fit(data, [StopsOneRank(1, 1)])
    assert model.stop_training
    return int(model.optimizer.iterations), training.as_bytes(model.get_weights())


def test_a_fit_of_the_programs_own_stops_on_all_ranks(rank_pool):
    first, second = rank_pool(2).run(own_loop_worker)

    assert first == second
    assert first[0] == 2


def uneven_worker():
    """Both are told more steps than the first has."""
    model = training.distributed_model(1)
    with pytest.raises(ring.RankMismatchError) as caught:
        training.fit(
            model,
            training.dataset(8 + 4 * ring.rank()),
            4,
            steps_per_epoch=3,
            callbacks=[ring.callbacks.MetricAverage()],
        )
    return str(caught.value)


def test_data_that_end_sooner_are_an_error_of_all(rank_pool):
    first, second = rank_pool(2).run(uneven_worker)

    assert first == second
    assert "after 2 steps" in first
    assert "ranks [0] have run out of data, ranks [1] have more" in first
