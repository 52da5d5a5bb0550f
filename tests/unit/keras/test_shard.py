"""Every item goes to exactly one rank."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from ring_keras.data.resume import Resume
from ring_keras.data.shard_arrays import shard_arrays
from ring_keras.data.shard_dataset import shard_dataset as shard_dataset_noted
from ring_keras.data.shard_py_dataset import shard_py_dataset
from ring_keras.ops.redivision import Division

SIZES = [
    pytest.param(1, marks=pytest.mark.slow),
    2,
    3,
    pytest.param(4, marks=pytest.mark.slow),
]


def shard_dataset(dataset, seed, remainder, rank, size, resume=None):
    """A rank's part."""
    division = Division(rank, size)
    return shard_dataset_noted(dataset, seed, remainder, division, resume)[0]


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
        (tf.data.Dataset.range(9).batch(2), None, "batch_size=None"),
        (tf.data.Dataset.range(9).batch(2).prefetch(1), 1, "before dataset.batch"),
        (tf.data.Dataset.range(9).repeat(), 1, "infinite cardinality"),
        (tf.data.Dataset.range(9).filter(lambda x: x > 2), 1, "unknown cardinality"),
    ],
)
def test_what_cannot_be_split_is_refused(dataset, seed, message):
    with pytest.raises(ValueError, match=message):
        shard_dataset(dataset, seed, "drop", 0, 2)


def with_options(dataset):
    options = tf.data.Options()
    options.deterministic = False
    return dataset.with_options(options)


def interleaved(of_each, **options):
    return lambda dataset: dataset.interleave(
        lambda x: of_each(tf.data.Dataset.from_tensors(x)), **options
    )


@pytest.mark.parametrize(
    "changed",
    [
        with_options,
        lambda data: data.map(tf.abs, num_parallel_calls=2, deterministic=False),
        lambda data: data.batch(2, num_parallel_calls=2, deterministic=False).unbatch(),
        interleaved(lambda one: one, num_parallel_calls=2, deterministic=False),
        interleaved(lambda one: one.map(tf.abs, 2, deterministic=False)),
        interleaved(lambda one: one.shuffle(4)),
        lambda data: data.flat_map(lambda x: tf.data.Dataset.range(x).shuffle(4)),
        lambda data: data.filter(lambda x: tf.random.uniform([]) < 0.5),
    ],
)
def test_an_order_left_to_chance_is_refused(changed):
    tf.random.set_seed(None)  # A test before may have set one.
    dataset = changed(tf.data.Dataset.range(4))
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(4))
    with pytest.raises(ValueError, match=r"RK510.*deterministic"):
        shard_dataset(dataset.prefetch(1), None, "drop", 0, 2)


@pytest.mark.parametrize(
    "changed",
    [
        lambda data: data.map(tf.abs, num_parallel_calls=2, deterministic=True),
        interleaved(lambda one: one.shuffle(4, seed=1), num_parallel_calls=2),
        lambda data: data.filter(lambda x: tf.random.uniform([], seed=1) >= 0.0),
        lambda data: tf.data.Dataset.sample_from_datasets([data], seed=1),
        lambda _: tf.data.Dataset.from_generator(
            lambda: range(4), output_signature=tf.TensorSpec([], tf.int64)
        ),
    ],
)
def test_an_order_that_all_ranks_have_is_taken(changed):
    dataset = changed(tf.data.Dataset.range(4))
    part = shard_dataset(dataset, None, "keep", 0, 2)
    assert [int(one) for one in part] == [0, 2]


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


def mixed(seed):
    low, high = tf.data.Dataset.range(8), tf.data.Dataset.range(8, 16)
    return tf.data.Dataset.sample_from_datasets([low, high], seed=seed)


def test_a_mixture_without_a_seed_is_refused():
    tf.random.set_seed(None)  # A test before may have set one.
    with pytest.raises(ValueError, match=r"RK510.*without a seed.*sample_from"):
        shard_dataset(mixed(None), None, "keep", 0, 2)


def test_a_mixture_with_a_seed_is_divided():
    parts = [shard_dataset(mixed(1), None, "keep", rank, 2) for rank in range(2)]
    items = [[int(one) for one in part] for part in parts]
    whole = [int(one) for one in mixed(1)]
    assert items == [whole[::2], whole[1::2]]
    assert sorted(whole) == list(range(16))


def test_a_seed_changes_the_order_of_arrays():
    assert list(shard_arrays(np.arange(9), 3, "drop", 0, 1)) != list(range(9))


def test_arrays_must_be_arrays_of_equal_length():
    with pytest.raises(ValueError, match="same number of rows"):
        shard_arrays((np.ones(3), np.ones(4)), None, "drop", 0, 2)


@pytest.mark.parametrize(
    ("data", "advice"),
    [
        ((i for i in range(3)), r"Received: generator.*from_generator\(\)"),
        (["a", "b"], r"Received: str.*np.asarray\(\)"),
        ([1, 2], r"Received: int.*np.asarray\(\)"),
        (tf.ragged.constant([[1], [2, 3]]), "RaggedTensor.*from_tensor_slices"),
        (tf.sparse.from_dense([[1, 0]]), "SparseTensor.*from_tensor_slices"),
    ],
)
def test_advice_fits_what_is_no_array(data, advice):
    with pytest.raises(TypeError, match=advice):
        shard_arrays(data, None, "drop", 0, 2)


def weighted(count):
    x = np.arange(count)
    return tf.data.Dataset.from_tensor_slices((x, 2 * x))


def real_items(part):
    """The items that are no padding; padding has the weight -0.0."""
    marks = [(float(w), np.signbit(w)) for _, _, w in part]
    assert set(marks) <= {(1.0, False), (0.0, True)}
    return [int(x) for x, y, w in part if y == 2 * x and not np.signbit(w)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "count",
    [1, 5, 23, *(pytest.param(count, marks=pytest.mark.slow) for count in (4, 7))],
)
@pytest.mark.parametrize(("known", "seed"), [(True, None), (True, 3), (False, None)])
def test_pad_gives_every_rank_as_many(size, count, known, seed):
    dataset = weighted(count)
    if not known:
        dataset = dataset.filter(lambda *_: True)

    (parts,) = parts_of(dataset, size, seed, remainder="pad")

    assert {len(part) for part in parts} == {-(-count // size)}
    items = [item for part in parts for item in real_items(part)]
    assert sorted(items) == list(range(count))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("seed", [None, 3])
def test_arrays_are_padded(size, seed):
    x = np.arange(23)
    parts = [shard_arrays((x, 2 * x), seed, "pad", rank, size) for rank in range(size)]

    assert {len(x) for x, _, _ in parts} == {-(-23 // size)}
    items = [i for part in parts for i in real_items(list(zip(*part, strict=True)))]
    assert sorted(items) == list(range(23))


class Weighted(keras.utils.PyDataset):
    """One batch, of a row that weighs nothing."""

    num_batches = 1

    def __getitem__(self, index):
        return np.ones(1), np.ones(1), np.array([-0.0])


def test_sample_weights_stay_what_they_are():
    x = np.arange(3)
    weights = np.array([0.0, 2.0, 3.0])
    dataset = tf.data.Dataset.from_tensor_slices((x, x, weights))
    part = list(shard_dataset(dataset, None, "pad", 1, 2).as_numpy_iterator())
    array_part = shard_arrays((x, x, weights), None, "pad", 1, 2)

    assert [float(w) for _, _, w in part] == [2.0, 0.0]
    assert array_part[2].tolist() == [2.0, 0.0]
    for last in (part[-1][2], array_part[2][-1]):
        assert np.signbit(last)
    (first, *_), *_ = shard_arrays((x, x, weights), None, "pad", 0, 2)[2:]
    assert not np.signbit(first)


def test_a_negative_zero_of_the_users_own_is_no_padding():
    x = np.arange(3)
    weights = np.array([-0.0, 2.0, 3.0])
    dataset = tf.data.Dataset.from_tensor_slices((x, x, weights))
    [first, _] = shard_dataset(dataset, None, "pad", 0, 2).as_numpy_iterator()
    array_part = shard_arrays((x, x, weights), None, "pad", 0, 2)
    batches = shard_py_dataset(Weighted(), None, "pad", 0, 2)

    for kept in (first[2], array_part[2][0], batches[0][2][0]):
        assert kept == 0
        assert not np.signbit(kept)


def test_what_cannot_be_padded_is_refused():
    with pytest.raises(ValueError, match="takes pairs"):
        shard_dataset(tf.data.Dataset.range(4), None, "pad", 0, 3)
    with pytest.raises(ValueError, match="takes pairs"):
        shard_arrays(np.ones(4), None, "pad", 0, 3)
    with pytest.raises(ValueError, match="floating-point"):
        shard_arrays((np.ones(4), np.ones(4), np.ones(4, int)), None, "pad", 2, 3)


class Numbers(keras.utils.PyDataset):
    """Batch k is [k]; `ends` counts its epochs."""

    def __init__(self, count, **kwargs):
        super().__init__(**kwargs)
        self.count = count
        self.ends = 0

    @property
    def num_batches(self):
        return self.count

    def __getitem__(self, index):
        return np.array([index]), np.array([2 * index])

    def on_epoch_end(self):
        self.ends += 1


def py_parts(count, size, seed, remainder, epochs=1):
    data = [Numbers(count, workers=3, max_queue_size=7) for _ in range(size)]
    parts = [
        shard_py_dataset(one, seed, remainder, rank, size)
        for rank, one in enumerate(data)
    ]
    orders = []
    for epoch in range(epochs):
        orders.append([[part[k] for k in range(part.num_batches)] for part in parts])
        for part, one in zip(parts, data, strict=True):
            part.on_epoch_end()
            assert one.ends == epoch + 1
    assert all((part.workers, part.max_queue_size) == (3, 7) for part in parts)
    return orders


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("remainder", ["drop", "keep", "pad"])
def test_batches_of_a_py_dataset_are_dealt_out(size, seed, remainder):
    epochs = py_parts(11, size, seed, remainder, epochs=3)

    orders = set()
    for parts in epochs:
        if remainder == "pad":
            items = [x[0] for p in parts for x, _, w in p if not np.signbit(w[0])]
        else:
            items = [x[0] for part in parts for x, _ in part]
        kept = 11 - 11 % size if remainder == "drop" else 11
        assert len(set(items)) == len(items) == kept
        if remainder != "keep":
            assert len({len(part) for part in parts}) == 1
        orders.add(tuple(int(item) for item in items))
    assert len(orders) == (1 if seed is None else 3)


def test_an_endless_py_dataset_is_dealt_out():
    part = shard_py_dataset(Numbers(None), None, "drop", 1, 3)

    assert part.num_batches is None
    assert [int(part[k][0][0]) for k in range(3)] == [1, 4, 7]
    with pytest.raises(ValueError, match="num_batches is None"):
        shard_py_dataset(Numbers(None), 1, "drop", 1, 3)


@pytest.mark.parametrize("size", [1, 2])
def test_the_order_depends_on_the_number_of_the_epoch_alone(size):
    def orders(epochs):
        """Of each epoch, in a process that begins with the first of them."""
        resumes = [Resume() for _ in range(size)]
        parts = [
            shard_dataset(tf.data.Dataset.range(23), 5, "drop", rank, size, resume)
            for rank, resume in enumerate(resumes)
        ]
        by_epoch = {}
        for epoch in epochs:
            for resume in resumes:
                resume.set_epoch(epoch)
            iter(parts[0])  # Keras makes iterators that it does not use.
            by_epoch[epoch] = [list(part.as_numpy_iterator()) for part in parts]
        assert all(int(part.cardinality()) == 23 // size for part in parts)
        return by_epoch

    all_of_them = orders([0, 1, 2, 3])
    later = orders([2, 3])

    assert all_of_them[2] == later[2]
    assert all_of_them[3] == later[3]
    for parts in all_of_them.values():
        items = [item for part in parts for item in part]
        assert len(set(items)) == len(items) == 23 - 23 % size
    assert len({str(parts) for parts in all_of_them.values()}) == 4
