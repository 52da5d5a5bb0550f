"""Collectives that are under way between two runs of functions, compiled or not."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import tensorflow as tf
from support.rank_pool import RankPools

import ring_keras as ring
from ring_keras.ops.departures import arrive, depart, forget_departed, new_slot
from ring_keras.values.compression import Compression


class Owner:
    """Of a slot."""


# In a function of one's own TensorFlow raises it.
ERRORS = (ring.RingKerasError, tf.errors.OpError)

# How two runs are made: eagerly (None), as a function, and by XLA (True).
RUNS = [
    (None, None),
    (False, True),
    (True, False),
    *(
        pytest.param(*runs, marks=pytest.mark.slow)
        for runs in [(None, False), (False, False), (None, True), (True, True)]
    ),
]
COUNT = 1000


def in_a_run(kind, function):
    """The function, as runs of that kind have it."""
    return function if kind is None else tf.function(function, jit_compile=kind)


def value_of(rank):
    return tf.range(4 * COUNT, dtype=tf.float32) + 100.0 * rank


def under_way_worker(departs, arrives):
    """What arrives in a later run, of another kind; and what is then in its slot."""
    owner = Owner()
    floats, bytes_, rows = (new_slot(owner) for _ in range(3))
    everyone = {"process_set": ring.global_process_set}
    size, rank = ring.size(), ring.rank()

    def begin(value, weight):
        depart(
            floats,
            "average",
            [value, 2 * value[:3]],
            name="floats",
            weight=weight,
            compression=Compression.none,
            **everyone,
        )
        whole = tf.cast(value, tf.int32)
        of_rank = tf.reshape(whole, [size, -1])
        depart(bytes_, "alltoall", [tf.cast(of_rank, tf.int8)], name="b", **everyone)
        depart(rows, "allgather", [whole[tf.newaxis]], name="rows", **everyone)

    def end():
        shapes = [tf.TensorShape([4 * COUNT]), tf.TensorShape([3])]
        each = tf.TensorShape([size, 4 * COUNT // size])
        return (
            *arrive(floats, shapes, tf.float32, name="floats"),
            *arrive(bytes_, [each], tf.int8, name="b"),
            *arrive(rows, [tf.TensorShape([size, 4 * COUNT])], tf.int32, name="rows"),
        )

    begin, end = in_a_run(departs, begin), in_a_run(arrives, end)
    everyones = np.stack([value_of(other) for other in range(size)])
    for use in range(2):
        begin(value_of(rank) + use, tf.constant(1.0 + rank, tf.float64))
        mean, twice, parts, all_rows = map(np.asarray, end())
        expected = np.average(everyones + use, axis=0, weights=1.0 + np.arange(size))
        np.testing.assert_allclose(mean, expected, rtol=1e-6)
        np.testing.assert_allclose(twice, 2 * expected[:3], rtol=1e-6)
        whole = (everyones + use).astype(np.int32)
        np.testing.assert_array_equal(all_rows, whole)
        of_this = np.split(whole, size, axis=1)[rank].astype(np.int8)
        np.testing.assert_array_equal(parts, of_this)
        with pytest.raises(ERRORS, match=r"\[RK820\] 'floats'"):
            end()
    begin(value_of(rank), tf.constant(1.0, tf.float64))
    del owner
    gc.collect()  # It has what refers to itself.
    with pytest.raises(ERRORS, match="RK820"):
        end()
    ring.barrier()


@pytest.mark.parametrize(("departs", "arrives"), RUNS)
def test_what_departs_arrives_in_a_later_run(
    rank_pool: RankPools, departs: bool | None, arrives: bool | None
) -> None:
    rank_pool(2).run(under_way_worker, args=(departs, arrives))


def latest_worker():
    """What departs twice arrives once, and what is forgotten never."""
    owner = Owner()
    slot = new_slot(owner)
    shape = tf.TensorShape([2])
    for number in (1.0, 2.0):
        value = tf.fill([2], number)
        depart(slot, "average", [value], name="a", process_set=ring.global_process_set)
    (latest,) = arrive(slot, [shape], tf.float32, name="a")
    np.testing.assert_array_equal(latest, [2.0, 2.0])
    depart(slot, "average", [value], name="a", process_set=ring.global_process_set)
    forget_departed(slot)
    with pytest.raises(ERRORS, match="RK820"):
        arrive(slot, [shape], tf.float32, name="a")


def test_a_slot_has_the_latest(rank_pool: RankPools) -> None:
    rank_pool(2).run(latest_worker)


def disagreeing_worker(jit_compile):
    """Ranks whose tensors differ hear of it where they arrive, and go on."""
    owner = Owner()
    slot = new_slot(owner)
    shape = tf.TensorShape([2 + ring.rank()])

    @tf.function(jit_compile=jit_compile)
    def begin(value):
        depart(slot, "average", [value], name="a", process_set=ring.global_process_set)

    @tf.function(jit_compile=jit_compile)
    def end():
        return arrive(slot, [shape], tf.float32, name="a")

    begin(tf.ones(shape))
    with pytest.raises(ERRORS, match=r"RankMismatchError: \[RK302\]"):
        end()
    shape = tf.TensorShape([2])
    begin(tf.ones(shape))
    (average,) = arrive(slot, [shape], tf.float32, name="a")
    np.testing.assert_array_equal(average, [1.0, 1.0])


@pytest.mark.parametrize(
    "jit_compile", [False, pytest.param(True, marks=pytest.mark.slow)]
)
def test_an_error_arrives(rank_pool: RankPools, jit_compile: bool) -> None:
    rank_pool(2).run(disagreeing_worker, args=(jit_compile,))


def cancelled_worker():
    """A step that fails while it waits for a rank that has not departed."""
    owner = Owner()
    slot = new_slot(owner)
    everyone = {"process_set": ring.global_process_set}

    @tf.function
    def step(place):
        (arrived,) = arrive(slot, [tf.TensorShape([2])], tf.float32, name="a")
        with tf.device("CPU:0"):  # A GPU's looks at no limits.
            return arrived, tf.gather([1.0, 2.0], place)  # No state, so no order.

    if ring.rank() == 0:
        depart(slot, "average", [tf.ones([2])], name="a", **everyone)
        with pytest.raises(tf.errors.InvalidArgumentError, match="is not in"):
            step(tf.constant(5))
    ring.barrier()
    if ring.rank() == 1:
        depart(slot, "average", [tf.ones([2])], name="a", **everyone)
        arrive(slot, [tf.TensorShape([2])], tf.float32, name="a")
    return ring.rank()


def test_a_step_that_fails_waits_for_nothing_more(rank_pool: RankPools) -> None:
    assert rank_pool(2).run(cancelled_worker) == [0, 1]
