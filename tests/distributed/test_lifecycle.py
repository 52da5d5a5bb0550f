"""init(), shutdown() and init() again; and what a failed init() leaves behind."""

import os

import keras
import numpy as np
import pytest
import tensorflow as tf

import ring_keras as ring
from ring_keras import _native
from ring_keras.errors import (
    CollectiveTimeoutError,
    NotInitializedError,
    RankMismatchError,
    RingKerasError,
    translated,
)
from ring_keras.job.job import current_job
from ring_keras.job.process_set import has_process_sets

X = np.arange(16, dtype=np.float32).reshape(8, 2) / 16
Y = X.sum(axis=1, keepdims=True)


def fit(model):
    """One epoch of two steps on this rank's part of the data."""
    data = ring.data.shard(tf.data.Dataset.from_tensor_slices((X, Y)), seed=1)
    model.fit(
        data.batch(4 // ring.size()),
        callbacks=[ring.callbacks.BroadcastGlobalVariables()],
        verbose=0,
    )


def new_model():
    """Every rank's has other weights."""
    keras.utils.set_random_seed(ring.rank())
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(ring.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    keras.utils.set_random_seed(0)
    return model


def memberships_worker():
    """One model goes on through three memberships, another is new in each."""
    first = current_job().generation
    kept = new_model()
    seen = []
    for number in range(3):
        if number:
            ring.init()
        assert current_job().generation == first + number
        # Nothing agreed on, measured or added before is left.
        assert not has_process_sets(current_job())
        model = new_model()
        fit(kept)
        fit(model)
        seen.append([m.get_weights()[0].tolist() for m in (kept, model)])
        part = ring.ProcessSet([1])
        if ring.size() > 1:
            ring.add_process_set(part)
            # Counted anew; tests before this one may have added sets to the first.
            assert part.process_set_id == 1 or number == 0
        if ring.rank() == 1:
            assert float(ring.allreduce(3.0, process_set=part)) == 3.0
        ring.shutdown()
        assert not ring.is_initialized()
        assert not part.added
        with pytest.raises(NotInitializedError, match=r"ring_keras\.init"):
            ring.rank()
        ring.shutdown()  # Without effect.
    ring.init()
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 1])
def test_three_memberships_with_training_in_each(rank_pool, size):
    results = rank_pool(size).run(memberships_worker)

    assert all(result == results[0] for result in results)
    kept, new = zip(*results[0], strict=True)
    assert kept[0] != kept[1] != kept[2]
    assert new[0] == new[1] == new[2] == kept[0]


def alone_worker():
    model = new_model()
    fit(model)
    ring.shutdown()
    ring.init()
    model.fit(X, Y, verbose=0)  # Without a callback of ours, which would see to it.
    return int(model.optimizer.iterations.numpy())


def test_one_rank_goes_on_in_another_membership(rank_pool):
    assert rank_pool(1).run(alone_worker) == [3]


def stale_graph_worker():
    part = ring.add_process_set([1])

    @tf.function
    def average(x):
        return ring.allreduce(x, name="average")

    @tf.function
    def sum_of_part(x):
        return ring.allreduce(x, ring.Sum, name="part", process_set=part)

    def call(function):
        with translated():
            return float(function(tf.constant(1.0 + ring.rank())))

    assert call(average) == 1.5
    if ring.rank() == 1:
        assert call(sum_of_part) == 2.0
    ring.shutdown()
    ring.init()
    with pytest.raises(NotInitializedError, match="before the last shutdown"):
        call(average)
    # The same number, but nobody knows whether of the same ranks.
    ring.add_process_set(part)
    if ring.rank() == 1:
        with pytest.raises(NotInitializedError, match="before the last shutdown"):
            call(sum_of_part)
        assert float(ring.allreduce(2.0, ring.Sum, process_set=part)) == 2.0
    again = tf.function(lambda x: ring.allreduce(x, name="average"))
    assert call(again) == 1.5
    ring.remove_process_set(part)


def test_a_graph_of_an_earlier_job_is_refused(rank_pool):
    rank_pool(2).run(stale_graph_worker)


def passes_worker():
    """Rank 0 leaves the job in the middle of what it adds up."""
    variable = tf.Variable(1.0)

    def gradient(factor):
        tape = ring.DistributedGradientTape(
            tf.GradientTape(), backward_passes_per_step=2
        )
        with tape:
            loss = factor * variable
        return float(tape.gradient(loss, variable))

    if ring.rank() == 0:
        assert gradient(100.0) == 0.0
    ring.shutdown()
    ring.init()
    return [gradient(2.0), gradient(4.0)]


def test_half_a_step_of_an_earlier_job_is_forgotten(rank_pool):
    assert rank_pool(2).run(passes_worker) == [[0.0, 6.0]] * 2


def early_worker(directory):
    """Rank 0 is in the next job before rank 1 has left the last."""
    tried = directory / "tried"
    if ring.rank() == 0:
        ring.shutdown()
        os.environ["RING_KERAS_INIT_TIMEOUT_S"] = "0.5"
        try:
            with pytest.raises(CollectiveTimeoutError, match=r"rank 1 has not called"):
                ring.init()
        finally:
            del os.environ["RING_KERAS_INIT_TIMEOUT_S"]
        assert not ring.is_initialized()
        tried.touch()
        ring.init()  # Waits for rank 1.
    else:
        while not tried.exists():
            with pytest.raises(ring.PeerLostError, match="shutdown"):
                ring.barrier()
        ring.shutdown()
        ring.init()
    return float(ring.allreduce(1.0 + ring.rank()))


def test_who_comes_back_early_waits_and_is_told_for_whom(rank_pool, tmp_path):
    assert rank_pool(2).run(early_worker, args=[tmp_path]) == [1.5, 1.5]


def failing_worker():
    """Rank 1 asks for a GPU that is not there."""
    ring.shutdown()
    own_rank = int(os.environ["RING_KERAS_RANK"])
    if own_rank == 1:
        os.environ["RING_KERAS_DEVICE"] = "7"
    try:
        with pytest.raises(RingKerasError, match=r"rank 1 on host .*RING_KERAS_DEVICE"):
            ring.init()
    finally:
        os.environ.pop("RING_KERAS_DEVICE", None)
    assert not ring.is_initialized()
    assert not _native.is_initialized()
    ring.init()
    return float(ring.allreduce(1.0 + ring.rank()))


def test_a_failed_init_leaves_nothing_behind(rank_pool):
    assert rank_pool(2).run(failing_worker) == [1.5, 1.5]


def process_sets_worker():
    one, same = ring.ProcessSet([1]), ring.ProcessSet([1])
    ring.shutdown()
    for _ in range(2):
        ring.init(process_sets=[one, [0]])
    ring.init(process_sets=[same])
    assert same.process_set_id == one.process_set_id == 1
    if ring.rank() == 1:
        assert ring.allreduce(1.0, ring.Sum, process_set=same) == 1.0
    assert ring.remove_process_set(same)
    assert not one.added
    assert not ring.remove_process_set(one)
    assert not ring.remove_process_set(ring.global_process_set)
    ring.shutdown()
    ring.init()


def test_init_again_only_adds_what_is_missing(rank_pool):
    rank_pool(2).run(process_sets_worker)


def disagreeing_worker():
    """What is wrong on one rank is an error on all, and nobody waits."""
    first = ring.rank() == 0
    for mine, theirs in ([0, 5], [0]), ([], [0]), ([1, 1], [0, 1]):
        with pytest.raises(RankMismatchError):
            ring.add_process_set(mine if first else theirs)
    for ranks in [0, 5], [0, 0], []:
        with pytest.raises(ValueError, match="ranks from 0 to 1"):
            ring.add_process_set(ranks)
    part = ring.add_process_set([0])
    with pytest.raises(RankMismatchError):
        ring.add_process_set(part if first else [1])
    with pytest.raises(ValueError, match="already"):
        ring.add_process_set(part)
    with pytest.raises(RankMismatchError):
        ring.remove_process_set(part if first else ring.ProcessSet([1]))
    assert part.added
    assert ring.remove_process_set(part)


def test_errors_of_process_sets_are_every_ranks(rank_pool):
    rank_pool(2).run(disagreeing_worker, timeout_s=30)


def padded_worker():
    """Data that is padded for the evaluation leaves the training step alone."""
    traces = []

    class Model(keras.Sequential):
        def call(self, *args, **kwargs):
            traces.append(kwargs.get("training"))
            return super().call(*args, **kwargs)

    def train():
        before = len(traces)
        data = ring.data.shard(tf.data.Dataset.from_tensor_slices((X, Y)), seed=1)
        model.fit(
            data.batch(2, drop_remainder=True),
            callbacks=[ring.callbacks.BroadcastGlobalVariables()],
            verbose=0,
        )
        return len(traces) - before

    model = Model([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(ring.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    train()
    test = tf.data.Dataset.from_tensor_slices((X[:7], Y[:7]))
    ring.data.shard(test, remainder="pad")
    ring.data.join(test.shard(ring.size(), ring.rank()).batch(1))
    try:
        return train()
    finally:
        ring.shutdown()
        ring.init()


def test_padding_of_other_data_traces_nothing_anew(rank_pool):
    assert rank_pool(2).run(padded_worker) == [0, 0]
