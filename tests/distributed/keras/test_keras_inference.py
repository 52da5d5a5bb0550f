"""`ring.predict` and `ring.evaluate` say what one process says."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import training

import ring_keras as ring

ROWS = 83
BATCH = 8  # Eleven batches, the last with three rows.
SIZES = [
    pytest.param(1, marks=pytest.mark.slow),
    2,
    pytest.param(3, marks=pytest.mark.slow),
]


class Batches(keras.utils.PyDataset):
    """Pairs, of which one may fail to be read."""

    def __init__(self, x, y, fails_at=None, **kwargs):
        super().__init__(**kwargs)
        self.x, self.y, self.fails_at = x, y, fails_at
        self.passes = []

    def on_epoch_begin(self):
        self.passes.append("begins")

    def on_epoch_end(self):
        self.passes.append("ends")

    def __len__(self):
        return -(-len(self.x) // BATCH)

    def __getitem__(self, index):
        if index == self.fails_at:
            raise OSError("unreadable")
        rows = slice(index * BATCH, (index + 1) * BATCH)
        return self.x[rows], self.y[rows]


class Shuffled(Batches):
    """In another order behind each pass, and on each rank."""

    def on_epoch_end(self):
        super().on_epoch_end()
        order = np.random.default_rng(ring.rank()).permutation(len(self.x))
        self.x, self.y = self.x[order], self.y[order]


def two_headed(seed=1):
    keras.utils.set_random_seed(seed)
    inputs = {"a": keras.Input((6,), name="a"), "b": keras.Input((6,), name="b")}
    both = keras.layers.Concatenate()([inputs["a"], inputs["b"]])
    hidden = keras.layers.Dense(5, activation="tanh")(both)
    outputs = {"wide": keras.layers.Dense(3)(hidden), "one": hidden[:, 0]}
    return keras.Model(inputs, outputs)


def unknown_length(*arrays):
    dataset = tf.data.Dataset.from_tensor_slices(arrays).filter(lambda *_: True)
    assert dataset.cardinality() == tf.data.UNKNOWN_CARDINALITY
    return dataset


def rows():
    x, y = training.arrays()
    return x[:ROWS], y[:ROWS]


def predict_worker():
    x, y = rows()
    model = training.build(1)
    expected = model.predict(x, batch_size=BATCH, verbose=0)
    slices = tf.data.Dataset.from_tensor_slices
    kinds = [
        (x, BATCH),
        (tf.constant(x), BATCH),
        (slices(x).batch(BATCH), None),
        (slices((x, y)).batch(BATCH), None),
        (unknown_length(x, y).batch(BATCH), None),
        (Batches(x, y), None),
    ]
    for data, batch in kinds:
        ours = ring.predict(model, data, batch_size=batch, verbose=0)
        np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-6)
        assert ours.dtype == expected.dtype
    assert kinds[-1][0].passes == ["begins", "ends"]
    for few in (1, BATCH, BATCH + 1):
        ours = ring.predict(model, x[:few], batch_size=BATCH, verbose=0)
        np.testing.assert_allclose(ours, expected[:few], rtol=0, atol=1e-6)
    # Structures in and out.
    both = two_headed()
    inputs = {"a": x, "b": x[::-1]}
    theirs = both.predict(inputs, verbose=0)
    ours = ring.predict(both, inputs, verbose=0)
    assert ours.keys() == theirs.keys()
    for key, array in theirs.items():
        np.testing.assert_allclose(ours[key], array, rtol=0, atol=1e-6)
    # To one rank.
    root = ring.size() - 1
    ours = ring.predict(model, x, batch_size=BATCH, verbose=0, root_rank=root)
    if ring.rank() == root:
        np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-6)
    else:
        assert ours is None


@pytest.mark.parametrize("size", SIZES)
def test_predictions_are_those_of_one_process_in_order(rank_pool, size):
    rank_pool(size).run(predict_worker)


def data_frame_worker():
    import pandas as pd

    x, y = rows()
    model = training.build(1)
    model.compile("sgd", "mse")
    ours = ring.evaluate(model, pd.DataFrame(x), pd.Series(y[:, 0]), verbose=0)
    assert np.isclose(ours, model.evaluate(x, y, verbose=0), rtol=1e-6)


def test_data_frames_are_cut_by_rows(rank_pool):
    pytest.importorskip("pandas")
    rank_pool(2).run(data_frame_worker)


def evaluate_worker():
    x, y = rows()
    weights = np.linspace(0.1, 2, ROWS).astype(np.float32)
    slices = tf.data.Dataset.from_tensor_slices
    for loss in (
        "binary_crossentropy",
        keras.losses.BinaryCrossentropy(reduction="sum"),
    ):
        model = training.build(1)
        model.compile(
            "sgd",
            loss,
            metrics=["accuracy", keras.metrics.AUC(name="auc")],
            weighted_metrics=["mae"],
        )
        kwargs = {"batch_size": BATCH, "verbose": 0}

        def compare(ours, theirs):
            np.testing.assert_allclose(ours, theirs, rtol=2e-6, atol=1e-6)

        compare(ring.evaluate(model, x, y, **kwargs), model.evaluate(x, y, **kwargs))
        expected = model.evaluate(x, y, sample_weight=weights, **kwargs)
        compare(ring.evaluate(model, x, y, sample_weight=weights, **kwargs), expected)
        if loss != "binary_crossentropy":
            continue  # Of what kind the data are makes no difference to it.
        triples = slices((x, y, weights)).batch(BATCH)
        compare(ring.evaluate(model, triples, verbose=0), expected)
        triples = unknown_length(x, y, weights).batch(BATCH)
        compare(ring.evaluate(model, triples, verbose=0), expected)
        compare(
            ring.evaluate(model, Batches(x, y), verbose=0),
            model.evaluate(Batches(x, y), verbose=0),
        )
        # Keras says that a pass has ended before it begins one, too.
        compare(
            ring.evaluate(model, Shuffled(x, y), verbose=0),
            model.evaluate(Batches(x, y), verbose=0),
        )
        for few in (1, BATCH + 1):
            theirs = model.evaluate(x[:few], y[:few], return_dict=True, **kwargs)
            ours = ring.evaluate(model, x[:few], y[:few], return_dict=True, **kwargs)
            assert ours.keys() == theirs.keys()
            compare([*ours.values()], [*theirs.values()])
    model = training.build(1)
    model.compile("sgd", "mse")
    ours = ring.evaluate(model, x, y, **kwargs)
    assert isinstance(ours, float)
    compare(ours, model.evaluate(x, y, **kwargs))
    # Trained by all ranks; ranks evaluate between two fits.
    model = training.distributed_model(1)
    training.fit(model, ring.data.shard(training.dataset()), BATCH)
    once = ring.evaluate(model, x, y, **kwargs)
    compare(once, model.evaluate(x, y, **kwargs))
    training.fit(model, ring.data.shard(training.dataset()), BATCH)
    assert ring.evaluate(model, x, y, **kwargs) != once


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_metrics_are_those_of_one_process(rank_pool, size):
    rank_pool(size).run(evaluate_worker)


class OwnStep(keras.Model):
    """Reports what it has worked out, and has no metrics."""

    def test_step(self, data):
        x, y = data
        return {"error": tf.reduce_mean(tf.abs(self(x) - y))}


def own_step_worker():
    x, y = rows()
    model = training.build(1, OwnStep)
    model.compile("sgd")
    ours = ring.evaluate(model, x, y, batch_size=ROWS, return_dict=True, verbose=0)
    theirs = model.evaluate(x, y, batch_size=ROWS, return_dict=True, verbose=0)
    assert ours.keys() == theirs.keys() == {"error"}
    np.testing.assert_allclose(ours["error"], theirs["error"], rtol=1e-6)


def test_a_test_step_of_its_own(rank_pool):
    rank_pool(2).run(own_step_worker)


def process_set_worker():
    x, _ = rows()
    pair = ring.add_process_set([0, 2])
    model = training.build(1)
    if ring.rank() != 1:
        ours = ring.predict(
            model, x, batch_size=BATCH, verbose=0, root_rank=2, process_set=pair
        )
        assert (ours is None) == (ring.rank() == 0)
    ring.remove_process_set(pair)


def test_of_a_process_set(rank_pool):
    rank_pool(3).run(process_set_worker)


def refused_worker():
    x, y = rows()
    rank, size = ring.rank(), ring.size()
    model = training.build(1)
    model.compile("sgd", "mse")
    slices = tf.data.Dataset.from_tensor_slices
    said = []

    def refuses(error, call):
        with pytest.raises(error) as caught:
            call()
        said.append(str(caught.value))

    # A part of the data on each rank.
    part = ring.data.shard((x, y))
    refuses(ring.RankMismatchError, lambda: ring.evaluate(model, *part, verbose=0))
    part = ring.data.shard(slices((x, y))).batch(BATCH)
    refuses(ring.RankMismatchError, lambda: ring.evaluate(model, part, verbose=0))
    # One rank's part cannot be read: the other is told.
    unreadable = Batches(x, y, fails_at=len(Batches(x, y)) - 1)
    refuses(ring.RankMismatchError, lambda: ring.evaluate(model, unreadable, verbose=0))
    refuses(ring.RankMismatchError, lambda: ring.predict(model, unreadable, verbose=0))
    # Other weights on one rank, another model on one.
    other = training.build(rank)
    refuses(ring.RankMismatchError, lambda: ring.predict(other, x, verbose=0))
    other = two_headed() if rank == size - 1 else model
    data = {"a": x, "b": x}
    refuses(
        ring.RankMismatchError,
        lambda: ring.predict(other, data if other is not model else x, verbose=0),
    )
    # What all refuse.
    dataset = slices((x, y)).batch(BATCH)
    refuses(ValueError, lambda: ring.predict(model, dataset.repeat()))
    refuses(ValueError, lambda: ring.predict(model, dataset.shuffle(9)))
    refuses(ValueError, lambda: ring.predict(model, dataset.shuffle(9, seed=1)))
    by_chance = dataset.map(lambda *pair: pair, 2, deterministic=False)
    refuses(ValueError, lambda: ring.predict(model, by_chance))
    refuses(ValueError, lambda: ring.predict(model, dataset, batch_size=BATCH))
    refuses(ValueError, lambda: ring.evaluate(model, dataset, y))
    refuses(ValueError, lambda: ring.predict(model, x[:0]))
    refuses(ValueError, lambda: ring.predict(model, dataset.take(0)))
    refuses(ValueError, lambda: ring.evaluate(model, x, y[1:]))
    refuses(TypeError, lambda: ring.predict(model, iter([x])))
    refuses(ValueError, lambda: ring.predict(model, x, root_rank=size))
    keras.utils.set_random_seed(1)
    memory = keras.layers.LSTM(2, stateful=True)
    recurrent = keras.Sequential([keras.Input((3, 2), batch_size=4), memory])
    series = np.ones((8, 3, 2), np.float32)
    refuses(ValueError, lambda: ring.predict(recurrent, series, batch_size=4))
    # And all go on.
    assert ring.predict(model, x, verbose=0).shape == (ROWS, 1)
    return said


def test_what_would_be_wrong_is_an_error_on_all_ranks(rank_pool):
    everyones = rank_pool(2).run(refused_worker)

    expected = [
        "the data differ across ranks",
        "the data differ across ranks",
        "OSError: unreadable",
        "OSError: unreadable",
        "differs across ranks",
        "",
        "infinite",
        "shuffle",
        "shuffle",
        "deterministic=False",
        "batch_size",
        "Leave out `y`",
        "no data",
        "no data",
        "same number of rows",
        "generator",
        "member",
        "stateful=True",
    ]
    for said in everyones:
        assert len(said) == len(expected)
        for text, part in zip(said, expected, strict=True):
            assert part in text
            assert ("failed on rank 1" in text) == ("unreadable" in part)


def progress_worker():
    import contextlib
    import io

    x, y = rows()
    model = training.build(1)
    model.compile("sgd", "mse")
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        ring.evaluate(model, x, y)
        ring.predict(model, x)
    return shown.getvalue()


def test_one_rank_shows_its_progress(rank_pool):
    first, second = rank_pool(2).run(progress_worker)

    assert first.count("━") > 0
    assert second == ""
