"""Every item goes to exactly one rank."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from ring_keras.data.shard_arrays import shard_arrays
from ring_keras.data.shard_dataset import shard_dataset

SIZES = [1, 2, 3, 4]


def parts_of(dataset, size, seed=None, remainder="drop", epochs=1):
    """By epoch, each rank's items."""
    parts = [
        shard_dataset(dataset, seed, remainder, rank, size) for rank in range(size)
    ]
    return [[list(part.as_numpy_iterator()) for part in parts] for _ in range(epochs)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("count", [0, 1, 3, 20, 23])
@pytest.mark.parametrize("known", [True, False])
def test_drop_gives_every_rank_as_many(size, count, known):
    dataset = tf.data.Dataset.range(count)
    if not known:
        dataset = dataset.filter(lambda _: True)

    (parts,) = parts_of(dataset, size)

    assert {len(part) for part in parts} == {count // size}
    items = sorted(item for part in parts for item in part)
    assert items == list(range(count - count % size))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("known", [True, False])
def test_keep_leaves_out_none(size, known):
    dataset = tf.data.Dataset.range(23)
    if not known:
        dataset = dataset.filter(lambda _: True)

    (parts,) = parts_of(dataset, size, remainder="keep")

    assert sorted(item for part in parts for item in part) == list(range(23))


@pytest.mark.parametrize("size", SIZES)
def test_a_seed_shuffles_alike_on_all_ranks_and_anew_each_epoch(size):
    dataset = tf.data.Dataset.range(23)

    epochs = parts_of(dataset, size, seed=5, remainder="keep", epochs=3)

    orders = []
    for parts in epochs:
        assert sorted(item for part in parts for item in part) == list(range(23))
        orders.append(tuple(map(tuple, parts)))
    assert len(set(orders)) == 3
    assert epochs == parts_of(dataset, size, seed=5, remainder="keep", epochs=3)


def test_batches_of_all_ranks_are_the_batch_of_one_process():
    dataset = tf.data.Dataset.range(24)
    alone = list(shard_dataset(dataset, 7, "drop", 0, 1).batch(6).as_numpy_iterator())

    ranks = [
        shard_dataset(dataset, 7, "drop", rank, 2).batch(3).as_numpy_iterator()
        for rank in range(2)
    ]

    for batch, *parts in zip(alone, *ranks, strict=True):
        assert sorted(batch) == sorted(np.concatenate(parts))


def test_items_of_any_structure_of_unknown_number():
    items = tf.data.Dataset.from_tensor_slices(({"a": np.arange(7)}, np.arange(7)))
    for structure in (
        items,
        items.map(lambda x, y: x),
        items.map(lambda x, y: (y,)),
        items.map(lambda x, y: tf.range(y)),
    ):
        dataset = structure.filter(lambda *_: True)
        part = shard_dataset(dataset, None, "drop", 1, 3)
        wanted = list(dataset)[1::3]
        tf.nest.map_structure(np.testing.assert_array_equal, list(part), wanted)


def test_an_endless_dataset_is_dealt_out():
    dataset = tf.data.Dataset.range(3).repeat()
    part = shard_dataset(dataset, None, "drop", 1, 2)

    assert list(part.take(4).as_numpy_iterator()) == [1, 0, 2, 1]


@pytest.mark.parametrize(
    ("dataset", "seed", "message"),
    [
        (tf.data.Dataset.range(9).shuffle(9), None, "shuffled without a seed"),
        (tf.data.Dataset.range(9).shuffle(9).map(tf.abs), 1, "shuffled without a seed"),
        (tf.data.Dataset.range(9).batch(2), None, "before dataset.batch"),
        (tf.data.Dataset.range(9).batch(2).prefetch(1), 1, "before dataset.batch"),
        (tf.data.Dataset.range(9).repeat(), 1, "infinite cardinality"),
        (tf.data.Dataset.range(9).filter(lambda x: x > 2), 1, "unknown cardinality"),
    ],
)
def test_what_cannot_be_split_is_refused(dataset, seed, message):
    with pytest.raises(ValueError, match=message):
        shard_dataset(dataset, seed, "drop", 0, 2)


def test_an_order_left_to_chance_is_refused():
    options = tf.data.Options()
    options.deterministic = False
    with pytest.raises(ValueError, match="deterministic"):
        shard_dataset(
            tf.data.Dataset.range(4).with_options(options), None, "drop", 0, 2
        )


def test_batches_that_were_undone_are_no_batches():
    dataset = tf.data.Dataset.range(8).batch(2).unbatch()
    assert list(shard_dataset(dataset, None, "drop", 1, 2).as_numpy_iterator())


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("seed", [None, 3])
def test_arrays_are_split_by_rows(size, seed):
    data = {"x": np.arange(46).reshape(23, 2), "y": [np.arange(23), np.ones(23)]}

    kept = [shard_arrays(data, seed, "keep", rank, size) for rank in range(size)]
    dropped = [shard_arrays(data, seed, "drop", rank, size) for rank in range(size)]

    assert sorted(np.concatenate([part["y"][0] for part in kept])) == list(range(23))
    assert {len(part["x"]) for part in dropped} == {23 // size}
    for part in kept + dropped:
        np.testing.assert_array_equal(part["x"][:, 0], 2 * part["y"][0])
        assert len(part["y"][1]) == len(part["x"])


def test_a_seed_changes_the_order_of_arrays():
    assert list(shard_arrays(np.arange(9), 3, "drop", 0, 1)) != list(range(9))


def test_arrays_must_be_arrays_of_equal_length():
    with pytest.raises(ValueError, match="same number of rows"):
        shard_arrays((np.ones(3), np.ones(4)), None, "drop", 0, 2)
    with pytest.raises(TypeError, match="Received: generator"):
        shard_arrays((i for i in range(3)), None, "drop", 0, 2)
