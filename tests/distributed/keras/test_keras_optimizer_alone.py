"""A `fit` that was given the optimizer alone has what it needs on several ranks."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import training
from support.log_texts import LogTexts

import ring_keras as ring
from ring_keras.callbacks.same_data import item_digest
from ring_keras.keras_internals import calls


def compiled(optimizer, seed=1):
    model = training.build(seed)
    model.compile(
        optimizer,
        "mse",
        metrics=["mae", keras.metrics.RootMeanSquaredError(name="rms")],
    )
    return model


def as_one_process_worker():
    """Ranks seeded differently, with uneven last batches; beside one process."""
    size = ring.size()
    count, held = 4 * 5 * size - 1, 4 * 3 * size - 1
    x, y = training.arrays()
    train, validation = (x[:count], y[:count]), (x[-held:], y[-held:])

    def fit(model, data, batch, validation):
        return training.fit(
            model,
            data,
            batch,
            epochs=3,
            validation_data=validation.batch(batch),
        )

    model = compiled(
        ring.DistributedOptimizer(keras.optimizers.Adam(0.01)), ring.rank()
    )
    history = fit(
        model,
        ring.data.shard(tf.data.Dataset.from_tensor_slices(train), remainder="pad"),
        4,
        ring.data.shard(
            tf.data.Dataset.from_tensor_slices(validation), remainder="keep"
        ),
    )
    alone = compiled(keras.optimizers.Adam(0.01), seed=0)
    expected = fit(
        alone,
        tf.data.Dataset.from_tensor_slices(train),
        4 * size,
        tf.data.Dataset.from_tensor_slices(validation),
    )
    return (
        training.largest_difference(model.get_weights(), alone.get_weights()),
        training.history_difference(history, expected),
    )


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_it_trains_and_reports_as_one_process(rank_pool, size):
    for weights, history in rank_pool(size).run(as_one_process_worker):
        assert weights < 1e-6
        assert history < 2e-6


def files_worker(directory):
    """Keras's callbacks, with paths of all ranks and of each."""
    x, y = training.arrays()
    own = Path(directory) / f"own-{ring.rank()}.csv"
    with LogTexts() as texts:
        compiled(ring.DistributedOptimizer("sgd")).fit(
            *ring.data.shard((x, y)),
            epochs=2,
            verbose=0,
            callbacks=[
                keras.callbacks.CSVLogger(f"{directory}/log.csv"),
                keras.callbacks.ModelCheckpoint(f"{directory}/best.keras"),
                keras.callbacks.CSVLogger(str(own)),
            ],
        )
    lines = (Path(directory) / "log.csv").read_text().splitlines()
    loaded = keras.models.load_model(f"{directory}/best.keras")
    assert int(loaded.optimizer.iterations) > 0
    return lines, own.read_text().splitlines(), texts


def test_files_of_all_ranks_are_written_by_one(rank_pool, tmp_path):
    results = rank_pool(2).run(files_worker, args=(str(tmp_path),))

    for lines, own, texts in results:
        assert len(lines) == 3, "a head and two epochs, once"
        assert own == lines, "metrics are the same on all ranks"
        assert texts == []


def progress_worker():
    x, y = training.arrays()
    model = compiled(ring.DistributedOptimizer("sgd"))
    shown = []
    for call in (
        lambda: model.fit(*ring.data.shard((x, y)), verbose=2),
        lambda: model.evaluate(x, y, verbose=2),
        lambda: model.predict(x, verbose=2),
    ):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            call()
        shown.append("step" in out.getvalue())
    return shown


def test_progress_is_shown_by_the_first_rank(rank_pool):
    assert rank_pool(2).run(progress_worker) == [[True] * 3, [False] * 3]


class Batches(keras.utils.PyDataset):
    def __init__(self, x, y):
        super().__init__()
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x) // 4

    def __getitem__(self, index):
        rows = slice(4 * index, 4 * index + 4)
        return self.x[rows], self.y[rows]


def same_data_worker(kind, steps_per_execution=1):
    x, y = (array[:32] for array in training.arrays())
    if kind.startswith("part"):
        x, y = ring.data.shard((x, y))
    batches = Batches(x, y)
    if kind.startswith("shard"):
        batches = ring.data.shard(batches)
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(4)
    spec = (tf.TensorSpec([None, 6]), tf.TensorSpec([None, 1]))
    arguments = {
        "arrays": {"x": x, "y": y, "batch_size": 4},
        "dataset": {"x": data},
        "PyDataset": {"x": batches},
        "generator": {
            "x": tf.data.Dataset.from_generator(
                lambda: iter(data), output_signature=spec
            )
        },
    }[kind.split()[-1]]
    model = compiled(ring.DistributedOptimizer("sgd"))
    model.steps_per_execution = steps_per_execution
    with LogTexts() as texts:
        model.fit(**arguments, epochs=2, verbose=0)
        second = len(texts)
        model.fit(**arguments, verbose=0)
    return texts[:second], texts[second:]


@pytest.mark.parametrize(
    ("kind", "steps_per_execution"),
    [
        ("arrays", 1),
        pytest.param("generator", 1, marks=pytest.mark.slow),
        pytest.param("PyDataset", 1, marks=pytest.mark.slow),
        pytest.param("dataset", 1, marks=pytest.mark.slow),
        pytest.param("dataset", 2, marks=pytest.mark.slow),
    ],
)
def test_data_that_all_ranks_read_whole_are_noticed(
    rank_pool, kind, steps_per_execution
):
    (first, again), others = rank_pool(2).run(
        same_data_worker, args=(kind, steps_per_execution)
    )

    came = {
        "arrays": "fit() got the same arrays on all 2 ranks, so an epoch",
        "dataset": "the datasets of all 2 ranks read the same arrays or files, so an",
        "PyDataset": "batch 0 of the PyDataset is the same on all 2 ranks, so an epoch",
        "generator": "the first batch was the same on all 2 ranks, so an epoch",
    }[kind]
    for texts in (first, again):
        (text,) = texts
        assert f"its own part of the data, but {came}" in text
        assert "every example 2 times. " in text
        assert "ring_keras.data.shard(" in text
        assert ("from_generator()" in text) == (kind == "generator")
    assert others == ([], [])


@pytest.mark.parametrize(
    "kind",
    [
        "parts of arrays",
        pytest.param("parts in a PyDataset", marks=pytest.mark.slow),
        pytest.param("shards of a PyDataset", marks=pytest.mark.slow),
        pytest.param("parts of dataset", marks=pytest.mark.slow),
    ],
)
def test_parts_are_not_taken_for_the_same(rank_pool, kind):
    assert rank_pool(2).run(same_data_worker, args=(kind,)) == [([], [])] * 2


@pytest.mark.parametrize("keeps_iterator", [False, True])
def test_each_rank_may_take_steps_out_of_all_data(keeps_iterator):
    run = calls.Run(
        trains=True,
        callbacks=keras.callbacks.CallbackList(),
        data=Batches(*(array[:32] for array in training.arrays())),
        keeps_iterator=keeps_iterator,
        epoch_iterator=None,
    )

    assert (item_digest(run) is None) == keeps_iterator


def numbers(line):
    number = tf.strings.to_number(line)
    return tf.fill([6], number), tf.fill([1], number)


def noisy(x, y):
    return x + tf.random.normal([6]), y


def write_lines(directory):
    """Eight files of eight lines, for all ranks."""
    if ring.rank() == 0:
        for name in range(8):
            lines = (str(8 * name + line) for line in range(8))
            Path(directory, str(name)).write_text("\n".join(lines))
    ring.barrier()
    return tf.data.Dataset.list_files(f"{directory}/*")


def examples_of(x, y):
    return tf.data.Dataset.from_tensor_slices((x, y))


def in_python(x, y):
    def read(index):
        return x[index], y[index]

    def mapped(index):
        one, other = tf.numpy_function(read, [index], (tf.float32, tf.float32))
        return tf.ensure_shape(one, [6]), tf.ensure_shape(other, [1])

    return tf.data.Dataset.range(32).shuffle(32).map(mapped)


def generated(x, y):
    def examples():
        order = np.random.default_rng().permutation(32)
        return ((x[index], y[index]) for index in order)

    spec = (tf.TensorSpec([6]), tf.TensorSpec([1]))
    return tf.data.Dataset.from_generator(examples, output_signature=spec)


# What `fit` is given, of the examples of all ranks, and of a rank's own.
UNDIVIDED = {
    "shuffled": lambda x, y, _: examples_of(x, y).shuffle(64).batch(4),
    "augmented": lambda x, y, _: (
        examples_of(x, y).shuffle(64).map(noisy, num_parallel_calls=2).batch(4)
    ),
    "repeated": lambda x, y, _: examples_of(x, y).shuffle(64).repeat(2).batch(4),
    "files": lambda x, y, path: (
        write_lines(path).interleave(tf.data.TextLineDataset).map(numbers).batch(4)
    ),
    "one reader": lambda x, y, path: (
        tf.data.TextLineDataset([f"{path}/{name}" for name in range(8)])
        .shuffle(64)
        .map(numbers)
        .batch(4)
    ),
}
DIVIDED_BY_CHANCE = {
    "before batch": lambda x, y, _: (
        examples_of(x, y).shuffle(64).shard(ring.size(), ring.rank()).batch(4)
    ),
    "after batch": lambda x, y, _: (
        examples_of(x, y).shuffle(64).batch(4).shard(ring.size(), ring.rank())
    ),
    "other seeds": lambda x, y, _: (
        examples_of(x, y)
        .shuffle(64, seed=1 + ring.rank())
        .shard(ring.size(), ring.rank())
        .batch(4)
    ),
    "files": lambda x, y, path: (
        write_lines(path)
        .shard(ring.size(), ring.rank())
        .interleave(tf.data.TextLineDataset)
        .map(numbers)
        .batch(4)
    ),
}
DIVIDED = {
    "ours": lambda x, y, _: (
        ring.data.shard(examples_of(x, y), seed=1).map(noisy).batch(4)
    ),
    "ours, then shuffled": lambda x, y, _: (
        ring.data.shard(examples_of(x, y)).shuffle(8).batch(4)
    ),
    "ours, with padding": lambda x, y, _: (
        ring.data.shard(examples_of(x, y), remainder="pad").shuffle(8).batch(4)
    ),
    "our files": lambda x, y, path: (
        ring.data.shard_files(f"{path}/*", seed=1)
        .interleave(tf.data.TextLineDataset)
        .map(numbers)
        .shuffle(8)
        .batch(4)
    ),
    "other files": lambda x, y, path: (
        tf.data.TextLineDataset(
            [f"{path}/{name}" for name in range(ring.rank(), 8, ring.size())]
        )
        .shuffle(64)
        .map(numbers)
        .batch(4)
    ),
    "lines of files": lambda x, y, path: (
        tf.data.Dataset.list_files(f"{path}/*", shuffle=False)
        .interleave(
            lambda name: tf.data.TextLineDataset(name).shard(ring.size(), ring.rank())
        )
        .shuffle(64)
        .map(numbers)
        .batch(4)
    ),
    "slices": lambda x, y, _: (
        examples_of(x[ring.rank() :: 2], y[ring.rank() :: 2]).shuffle(64).batch(4)
    ),
    "skipped": lambda x, y, _: (
        examples_of(x, y).skip(32 * ring.rank()).take(32).shuffle(64).batch(4)
    ),
    "filtered": lambda x, y, _: (
        examples_of(x, y)
        .enumerate()
        .filter(lambda place, _: place % ring.size() == ring.rank())
        .map(lambda _, example: example)
        .shuffle(64)
        .batch(4)
    ),
    "shuffled with a seed, then tf.data's shard": lambda x, y, _: (
        examples_of(x, y).shuffle(64, seed=1).shard(ring.size(), ring.rank()).batch(4)
    ),
    "a fold, then ours": lambda x, y, _: (
        ring.data.shard(examples_of(x, y).shard(2, 0)).shuffle(8).batch(4)
    ),
    "generated": lambda x, y, _: generated(x, y).batch(4),
    "in Python": lambda x, y, _: in_python(
        x[ring.rank() :: 2], y[ring.rank() :: 2]
    ).batch(4),
    "made up": lambda x, y, _: (
        tf.data.Dataset.range(32)
        .map(lambda _: (tf.random.normal([6]), tf.random.normal([1])))
        .batch(4)
    ),
    "draws without an end": lambda x, y, _: (
        examples_of(x, y).shuffle(64).repeat().batch(4)
    ),
    "draws of many passes": lambda x, y, _: (
        examples_of(x, y).shuffle(64).repeat(3).batch(4)
    ),
    "a sample of each rank's own": lambda x, y, _: (
        examples_of(x, y).shuffle(64, seed=ring.rank()).take(32).batch(4)
    ),
    "by a table of each rank's own": lambda x, y, _: by_table(x, y).batch(4),
}


def by_table(x, y):
    places = tf.Variable(np.arange(len(x))[ring.rank() :: ring.size()])
    return tf.data.Dataset.range(32).map(
        lambda place: (tf.constant(x)[places[place]], tf.constant(y)[places[place]])
    )


def shuffled_data_worker(kind, directory):
    """What each of these warns of."""
    cases = {
        "undivided": UNDIVIDED,
        "divided by chance": DIVIDED_BY_CHANCE,
        "divided": DIVIDED,
    }[kind]
    x, y = (array[:64] for array in training.arrays())
    write_lines(directory)  # On both ranks before any of them reads.
    model = compiled(ring.DistributedOptimizer("sgd"))
    found = {}
    for name, make in cases.items():
        tf.random.set_seed(None)  # As most scripts leave it.
        data = make(x, y, directory)
        draws = name.startswith("draws")
        with LogTexts() as found[name]:
            # The same on all ranks on purpose.
            model.fit(
                data,
                verbose=0,
                steps_per_epoch=4 if draws else None,
                validation_data=(x, y),
            )
    return found


@pytest.mark.slow
def test_same_data_are_noticed_behind_a_shuffle(rank_pool, tmp_path):
    first, second = rank_pool(2).run(
        shuffled_data_worker, args=("undivided", str(tmp_path))
    )

    for name, texts in first.items():
        assert len(texts) == 1, (name, texts)
        assert "the datasets of all 2 ranks read the same" in texts[0]
    assert not any(second.values())


@pytest.mark.slow
def test_a_shard_behind_a_shuffle_by_chance_is_noticed(rank_pool, tmp_path):
    first, second = rank_pool(2).run(
        shuffled_data_worker, args=("divided by chance", str(tmp_path))
    )

    for name, texts in first.items():
        assert len(texts) == 1, (name, texts)
        assert "[RK513] dataset.shard() divides the data" in texts[0]
    assert not any(second.values())


@pytest.mark.slow
def test_data_that_are_divided_raise_no_alarm(rank_pool, tmp_path):
    for found in rank_pool(2).run(
        shuffled_data_worker, args=("divided", str(tmp_path))
    ):
        assert found == {name: [] for name in DIVIDED}


def one_validates_worker(callbacks):
    x, y = training.arrays()
    model = compiled(ring.DistributedOptimizer("sgd"))
    try:
        with LogTexts() as texts:
            history = model.fit(
                *ring.data.shard((x, y)),
                verbose=0,
                validation_data=(x, y) if ring.rank() == 0 else None,
                callbacks=callbacks(),
            ).history
    except ring.RankMismatchError as error:
        return str(error)
    return history["loss"], "val_loss" in history, texts


def test_validation_on_one_rank_is_its_own(rank_pool):
    first, second = rank_pool(2).run(one_validates_worker, args=(list,))

    assert (first[1], second[1]) == (True, False)
    assert first[0] != second[0], "each reports of its own data"
    (text,) = first[2]
    assert "only ranks [0] have validation_data" in text
    assert second[2] == []


def own_average():
    return [ring.callbacks.MetricAverage()]


def test_an_average_of_validations_that_some_lack_is_an_error(rank_pool):
    first, second = rank_pool(2).run(one_validates_worker, args=(own_average,))

    assert first == second
    assert "only ranks [0] have validation_data" in first


def distributed_worker(directory):
    """By its arguments, on an optimizer that nobody has distributed."""
    x, y = training.arrays()
    model = compiled(keras.optimizers.SGD(0.5))
    callback = ring.callbacks.Distributed(
        base_lr=0.1, warmup_epochs=1, tensorboard=directory
    )
    mine = ring.data.shard((x, y))
    model.fit(*mine, batch_size=8, epochs=2, verbose=0, callbacks=[callback])
    again = model.fit(*mine, batch_size=8, verbose=0, callbacks=[callback]).history
    evaluated = model.evaluate(*mine, verbose=0, return_dict=True, callbacks=[callback])
    whole = model.evaluate(x, y, verbose=0, return_dict=True)
    differences = [abs(evaluated[key] - whole[key]) for key in whole]
    return (
        training.as_bytes(model.get_weights()),
        float(model.optimizer.learning_rate.numpy()),
        again["loss"],
        max(differences),
    )


@pytest.mark.slow
def test_one_callback_has_them_all(rank_pool, tmp_path):
    first, second = rank_pool(2).run(distributed_worker, args=(str(tmp_path),))

    assert first == second
    _, rate, _, difference = first
    assert rate == pytest.approx(0.2)
    assert difference < 1e-6
    assert list(tmp_path.rglob("events.*"))


def one_rank_worker(directory):
    callback = ring.callbacks.Distributed(tensorboard=directory)
    x, y = training.arrays()
    model = compiled(ring.DistributedOptimizer("sgd"))
    with contextlib.redirect_stdout(io.StringIO()) as out:
        model.fit(x, y, verbose=2, callbacks=[callback])
    return "step" in out.getvalue()


def test_on_one_rank_its_arguments_count_too(rank_pool, tmp_path):
    assert rank_pool(1).run(one_rank_worker, args=(str(tmp_path),)) == [True]
    assert list(tmp_path.rglob("events.*"))


def test_half_a_warm_up_is_refused():
    with pytest.raises(ValueError, match=r"Received: base_lr=0\.1, warmup_epochs=None"):
        ring.callbacks.Distributed(base_lr=0.1)


def other_models_worker():
    """What a process does outside of such a `fit` is left alone."""
    x, y = training.arrays()
    ring.DistributedOptimizer("sgd")
    model = compiled("sgd")
    if ring.rank() == 0:
        before = np.copy(model.get_weights()[0])
        model.fit(x, y, verbose=0)
        assert (before != model.get_weights()[0]).any()
    return True


def test_a_model_of_one_rank_asks_nobody(rank_pool):
    assert rank_pool(2).run(other_models_worker) == [True, True]
