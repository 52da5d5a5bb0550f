"""Ranks split the same data, or say that they do not."""

from __future__ import annotations

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

import ring_keras as ring

COUNT = 23


def split_worker():
    """Each rank's items, of every kind of split."""
    keras.utils.set_random_seed(0)
    dataset = tf.data.Dataset.range(COUNT)
    parts = [
        ring.data.shard(dataset, seed=4, remainder="keep"),
        ring.data.shard(dataset.shuffle(9, seed=1), remainder="keep"),
        ring.data.shard(dataset, seed=4),
    ]
    # Random numbers of each rank's own do not disturb the order.
    keras.utils.set_random_seed(ring.rank())
    epochs = [list(part.as_numpy_iterator()) for part in parts for _ in range(2)]
    array = ring.data.shard(np.arange(COUNT), seed=4, remainder="keep")
    return [[int(item) for item in items] for items in [*epochs, array]]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_every_item_is_on_one_rank(rank_pool, size):
    results = rank_pool(size).run(split_worker)

    *kept, dropped, dropped_again, array = zip(*results, strict=True)
    for parts in (*kept, array):
        assert sorted(itertools.chain(*parts)) == list(range(COUNT))
    for parts in (dropped, dropped_again):
        items = list(itertools.chain(*parts))
        assert {len(part) for part in parts} == {COUNT // size}
        assert len(set(items)) == len(items)


def different_data_worker():
    rank = ring.rank()
    messages = []

    def refused(data, **kwargs):
        with pytest.raises(ring.RankMismatchError) as caught:
            ring.data.shard(data, **kwargs)
        messages.append(str(caught.value))

    refused(tf.data.Dataset.range(COUNT + rank))
    refused(np.ones(COUNT), seed=rank)
    keras.utils.set_random_seed(rank)
    refused(tf.data.Dataset.range(COUNT), seed=1)
    keras.utils.set_random_seed(1)
    return messages, list(ring.data.shard(np.arange(4)))


def test_different_data_is_named(rank_pool):
    results = rank_pool(2).run(different_data_worker)

    assert results[0][0] == results[1][0]
    assert "rank 0 has 23 items" in results[0][0][0]
    assert "rank 1 has 24 items" in results[0][0][0]
    assert all("seeds" in message for message in results[0][0])
    assert [part for _, part in results] == [[0, 2], [1, 3]]
