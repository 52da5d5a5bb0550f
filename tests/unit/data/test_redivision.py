"""What is left of an epoch is divided among any number of ranks."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tensorflow as tf

from ring_keras import keras_internals as internals
from ring_keras.data.shard_dataset import shard_dataset
from ring_keras.ops.data_order import order_on
from ring_keras.ops.redivision import Division, Redivision, redivision_of

COUNT, BATCH = 101, 2
EVERY = range(COUNT)


def numbers(seed: int | None, remainder: str = "drop") -> tf.data.Dataset:
    """Those from 0 on, by batches of pairs."""
    division = Division(0, 3)
    part, part_of = shard_dataset(
        tf.data.Dataset.range(COUNT), seed, remainder, division
    )
    redivision = Redivision(("numbers",), COUNT, remainder, division, part_of)
    noted = redivision.put_on(part)
    return noted.map(lambda number: 10 * number).batch(BATCH).prefetch(1)


def taken(data: tf.data.Dataset, division: Division, batches: int) -> list[list[int]]:
    """The first batches of a rank in an epoch."""
    redivision = redivision_of(data)
    for order in filter(None, map(order_on, internals.upstream(data))):
        order.set_epoch(3)
    dataset = redivision.make(division).take(batches)
    return [[number // 10 for number in batch] for batch in dataset.as_numpy_iterator()]


@pytest.mark.parametrize("seed", [5, pytest.param(None, marks=pytest.mark.slow)])
def test_each_item_is_taken_once_however_often_the_ranks_change(seed):
    data = numbers(seed)
    generator = np.random.default_rng(1)
    start, seen = 0, []
    whole = list(itertools.chain(*taken(data, Division(0, 1), COUNT)))
    assert sorted(whole) == list(EVERY)
    while start < COUNT - 24:
        size = int(generator.integers(1, 5))
        steps = int(generator.integers(1, 4))
        parts = [
            taken(data, Division(rank, size, start), steps) for rank in range(size)
        ]
        for step in range(steps):
            # A step takes what comes next of the one order, whoever takes it.
            of_all = [number for part in parts for number in part[step]]
            assert sorted(of_all) == sorted(whole[start : start + len(of_all)])
            start += len(of_all)
            seen += of_all
    (rest,) = [taken(data, Division(0, 1, start), COUNT)]
    seen += itertools.chain(*rest)
    assert sorted(seen) == list(EVERY)


def test_the_batches_are_known():
    made = numbers(5)
    assert redivision_of(made).batch_size() == BATCH
    again = redivision_of(made).make(Division(1, 2, 21))
    assert int(again.cardinality()) == (COUNT - 21) // 2 // BATCH == 20
    assert redivision_of(again).division == Division(1, 2, 21)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data.batch(2), "batched more than once"),
        (
            lambda data: data.map(
                lambda x: x, num_parallel_calls=2, deterministic=False
            ),
            "deterministic=False",
        ),
    ],
)
def test_what_has_no_order_is_an_error(change, message):
    with pytest.raises(ValueError, match=message):
        redivision_of(change(numbers(5))).batch_size()


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.filter(lambda x: True),
        lambda data: data.shuffle(9, seed=1),
        lambda data: data.repeat(2),
        lambda data: data.take(3),
    ],
)
def test_what_nobody_can_follow_is_not_divided_anew(change):
    assert redivision_of(change(numbers(5))) is None
