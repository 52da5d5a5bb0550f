"""Ranks split the same data, or say that they do not."""

from __future__ import annotations

import itertools
import platform

import keras
import numpy as np
import pytest
import tensorflow as tf
from support.log_texts import LogTexts
from support.variants import variants

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


@pytest.mark.parametrize("size", [1, 2, 3, pytest.param(4, marks=pytest.mark.slow)])
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


def by_chance(array):
    return np.random.default_rng(ring.rank()).permutation(array)


class Batches(keras.utils.PyDataset):
    """One row in a batch; `x` drawn anew each time, and targets in an order."""

    def __init__(self, y, order, rows=1):
        super().__init__()
        self._y, self._order, self._rows = y, order, rows

    def __len__(self):
        return len(self._y)

    def __getitem__(self, index):
        rows = self._order[index : index + self._rows]
        return np.random.default_rng().random((1, 3)), self._y[rows]


WHOLES = {
    "permutation": lambda x, y: (by_chance(x), y),
    "labels alone": lambda x, y: (x, by_chance(y)),
    "texts": lambda x, y: by_chance(np.array([f"text {n}" for n in range(len(x))])),
    "dataset": lambda x, y: tf.data.Dataset.from_tensor_slices((by_chance(x), y)),
    "shapes": lambda x, y: Batches(y, np.arange(len(y)), 1 + ring.rank()),
    "PyDataset": lambda x, y: Batches(y, by_chance(np.arange(len(y)))),
    "file names": lambda x, y: tf.data.Dataset.from_tensor_slices(
        by_chance(np.array([f"/data/{n}" for n in range(len(x))]))
    ),
}


def other_wholes_worker():
    rank = ring.rank()
    x = np.random.default_rng(9).random((COUNT, 3), dtype=np.float32)
    y = np.arange(COUNT)
    messages = {}
    for name, whole in WHOLES.items():
        with pytest.raises(ring.RankMismatchError) as caught:
            ring.data.shard(whole(x, y))
        messages[name] = str(caught.value)
    names = np.array([f"/host {rank}/{n}" for n in range(COUNT)])
    x[0] = np.nan
    rounded = x * np.float32(1 + 1e-7 * rank)
    ring.data.shard((rounded, y, np.array(["a", "b"] * 12)[:COUNT]))
    ring.data.shard(tf.data.Dataset.from_tensor_slices((names, y)))
    ring.data.shard(Batches(y, np.arange(COUNT)))
    ring.data.shard(Batches(y, by_chance))  # Which has no first batch.
    ring.data.shard(Batches(x[:, None] * (1 + rank), np.arange(COUNT)))  # Images.
    return messages


def test_ranks_that_hold_other_rows_are_told(rank_pool):
    first, second = rank_pool(2).run(other_wholes_worker)

    assert first == second
    for message in first.values():
        assert "[RK320]" in message
        assert "have 23 items and seeds" in message
        assert "other rows at the same places" in message
        assert "np.random.default_rng(1)" in message


def too_few_worker():
    x = np.zeros((2, 3))
    for data in (x, tf.data.Dataset.from_tensor_slices(x)):
        with pytest.raises(ValueError, match=r"\[RK511\].* an item for each rank"):
            ring.data.shard(data)
    return len(ring.data.shard(x, remainder="keep"))


def test_fewer_items_than_ranks_are_refused(rank_pool):
    assert rank_pool(3).run(too_few_worker) == [1, 1, 0]


def large_worker():
    items = tf.data.Dataset.range(1_000_000)
    large = items.map(lambda _: tf.zeros([1024]))
    with LogTexts() as texts:
        ring.data.shard(large, seed=1)
    with LogTexts() as no_texts:
        ring.data.shard(large).shuffle(10_000)
        ring.data.shard(items, seed=1)
    assert no_texts == []
    return texts


def test_a_shuffle_of_more_than_memory_holds_is_told(rank_pool):
    [text], others = rank_pool(2).run(large_worker)

    assert "[RK514]" in text
    assert "all 1000000 items in memory on every rank" in text
    assert "4.1 GB" in text
    assert others == []


def two_calls_worker(seeds):
    x, y = np.arange(12), np.arange(12)
    with LogTexts() as texts:
        others = ring.data.shard(np.arange(7), seed=5)
        again = ring.data.shard(x, seed=6)  # The same one.
        parts = [ring.data.shard(x, seed=seeds[0]), ring.data.shard(y, seed=seeds[1])]
        both = ring.data.shard((x, y), seed=9)
    del others, again, both
    return texts, bool((parts[0] == parts[1]).all())


def test_x_and_y_in_two_orders_are_told(rank_pool):
    pool = rank_pool(2)
    assert pool.run(two_calls_worker, args=((1, 1),)) == [([], True), ([], True)]

    [text], fits = pool.run(two_calls_worker, args=((1, 2),))[0]

    assert not fits
    assert "[RK515] shard() has divided an array of 12 rows with seed=1" in text
    assert "call shard((x, y), seed=1)" in text


class Keeps(keras.Model):
    """Notes the numbers that it is trained on, and learns nothing."""

    def __init__(self):
        super().__init__()
        self.scale = self.add_weight(shape=(1,), initializer="ones")
        self.seen = []

    def call(self, x):
        tf.py_function(lambda x: self.seen.extend(x.numpy().ravel().tolist()), [x], [])
        return x * self.scale


LOOKS = {
    "seed": lambda data: ring.data.shard(data, seed=4),
    "own shuffle": lambda data: ring.data.shard(data.shuffle(32, seed=1)),
    "PyDataset": lambda data: ring.data.shard(Items(), seed=4),
}


class Items(keras.utils.PyDataset):
    """The same 32 numbers, in batches of four."""

    @property
    def num_batches(self):
        return 8

    def __getitem__(self, index):
        x = np.arange(4 * index, 4 * index + 4, dtype=np.float32)[:, None]
        return x, x


def looking_worker(how, steps_per_epoch):
    """Rank 0 alone looks at its data before it trains."""
    data = tf.data.Dataset.range(32).map(
        lambda n: (tf.cast([n], tf.float32), tf.cast([n], tf.float32))
    )
    train = part = LOOKS[how](data)
    if how != "PyDataset":
        train = part.batch(4).prefetch(2)
        if steps_per_epoch:
            train = train.repeat()
    model = Keeps()
    model.compile(
        ring.DistributedOptimizer(keras.optimizers.SGD(0.0)), "mse", run_eagerly=True
    )
    if ring.rank() == 0:
        if how == "PyDataset":
            model.evaluate(part, verbose=0)
        else:
            next(iter(train))
            list(part.take(3))
    model.seen.clear()
    try:
        model.fit(
            train,
            epochs=2,
            verbose=0,
            shuffle=False,
            steps_per_epoch=steps_per_epoch,
        )
    except ring.RankMismatchError as error:
        return str(error)
    return [sorted(map(int, model.seen[:16])), model.seen[16:]]


@pytest.mark.parametrize(
    ("how", "steps_per_epoch"),
    variants([("PyDataset", None)], [("seed", None), ("seed", 4)]),
)
def test_a_look_at_the_data_on_one_rank_changes_no_order(
    rank_pool, how, steps_per_epoch
):
    first, second = rank_pool(2).run(looking_worker, args=(how, steps_per_epoch))

    for epoch in (0, 1):
        seen = sorted([*map(int, first[epoch]), *map(int, second[epoch])])
        assert seen == list(range(32)), f"epoch {epoch}"
    assert first[0] != sorted(map(int, first[1])), "each epoch has another order"


def orders_worker():
    """The items of each epoch, in two fits, on all ranks that train."""
    data = tf.data.Dataset.range(12).map(
        lambda n: (tf.cast([n], tf.float32), tf.cast([n], tf.float32))
    )
    train = ring.data.shard(data, seed=4).batch(12 // ring.size())
    model = Keeps()
    model.compile(
        ring.DistributedOptimizer(keras.optimizers.SGD(0.0)), "mse", run_eagerly=True
    )
    for epochs in (2, 3):
        model.fit(train, epochs=epochs, verbose=0)
    return list(map(int, model.seen))


def test_each_epoch_has_the_order_that_it_has_on_one_rank(rank_pool):
    [alone] = rank_pool(1).run(orders_worker)

    by_rank = rank_pool(2).run(orders_worker)

    together = [item for pair in zip(*by_rank, strict=True) for item in pair]
    assert together == alone
    first, second, *again = (alone[n : n + 12] for n in range(0, 60, 12))
    assert [first, second] == again[:2], "another fit begins with the first epoch"
    assert first != second


@pytest.mark.parametrize(
    ("how", "steps_per_epoch", "passes"),
    [
        ("own shuffle", None, [2, 0]),
        pytest.param("own shuffle", 4, [2, 0], marks=pytest.mark.slow),
    ],
)
def test_orders_that_differ_are_found(rank_pool, how, steps_per_epoch, passes):
    first, second = rank_pool(2).run(looking_worker, args=(how, steps_per_epoch))

    assert first == second
    assert f"ranks [0, 1] have begun {passes} passes" in first


def looking_before_a_loop_worker():
    """Rank 0 alone looks at its data, whose order no `fit` sets."""
    part = ring.data.shard(tf.data.Dataset.range(32), seed=4)
    if ring.rank() == 0:
        list(part.take(1))
    weight = tf.Variable(1.0)
    [number] = part.take(1)
    with ring.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = weight * tf.cast(number, tf.float32)
    with pytest.raises(ring.RankMismatchError) as raised:
        tape.gradient(loss, [weight])
    return str(raised.value)


def test_orders_that_differ_in_a_loop_are_found(rank_pool):
    first, second = rank_pool(2).run(looking_before_a_loop_worker)

    assert first == second
    assert "ranks [0, 1] have begun [2, 1] passes" in first


def data_of_one_rank_worker():
    """Rank 0 has data of its own besides, and has passed over them."""
    first = ring.add_process_set([0])
    numbers = tf.data.Dataset.range(8)
    kept = []
    if first.included():
        kept.append(ring.data.shard(numbers, seed=1, process_set=first))
        for _ in range(3):
            list(kept[0])
    kept.append(ring.data.shard(numbers, seed=1))
    list(kept[-1])
    variable = tf.Variable(1.0)
    with ring.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = variable * variable
    gradient = float(tape.gradient(loss, variable))
    ring.remove_process_set(first)
    return gradient


def test_data_of_some_ranks_are_no_others(rank_pool):
    assert rank_pool(2).run(data_of_one_rank_worker) == [2.0, 2.0]


def caching_worker(directory):
    """What a fit warns of that caches in one file, in files of its own, in memory."""
    x = np.arange(32, dtype=np.float32).reshape(16, 2)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(ring.DistributedOptimizer("sgd"), "mse")
    whole = tf.data.Dataset.from_tensor_slices((x, x[:, :1]))
    found = []
    for name in ("one", f"own{ring.rank()}", ""):
        part = ring.data.shard(whole).cache(name and f"{directory}/{name}")
        # One after the other, or TensorFlow would refuse the file of both.
        for rank in range(2):
            if ring.rank() == rank:
                list(part)
            ring.barrier()
        with LogTexts() as texts:
            model.fit(part.batch(4), verbose=0)
        found.append(texts)
        if name == "one":
            shared = part
    # That says nothing of the data that it is trained on.
    spec = (tf.TensorSpec([None, 2]), tf.TensorSpec([None, 1]))
    same = tf.data.Dataset.from_generator(
        lambda: iter([(x, x[:, :1])]), output_signature=spec
    )
    with LogTexts() as texts:
        model.fit(same, validation_data=shared.batch(4), verbose=0)
    found.append(texts)
    return found


def test_a_cache_file_that_ranks_share_is_told(rank_pool, tmp_path):
    first, second = rank_pool(2).run(caching_worker, args=(str(tmp_path),))

    [shared], own, in_memory, of_validation = first
    assert "[RK653] each rank should cache its data in a file of its own" in shared
    who = f"ranks [0, 1] of host {platform.node()}"
    assert f"but {who} share '{tmp_path}/one'" in shared
    assert own == in_memory == []
    assert [text.split()[1] for text in of_validation] == ["[RK653]", "[RK503]"]
    assert second == [[], [], [], []]
