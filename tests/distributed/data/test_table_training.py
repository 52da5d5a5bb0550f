"""Training on rows of files of tables, and going on with it."""

from __future__ import annotations

import itertools
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import training
from support.variants import variants

import ring_keras as ring

pytest.importorskip("pyarrow", reason="needs the extra parquet")

from support.table_data import (
    WRITERS,
    numbered_table,
    shard_function,
    write_arrow,
    write_numbered,
    write_parquet,
)

KINDS = pytest.mark.parametrize("kind", WRITERS)
# One file is empty; the last piece of most is short.
COUNTS = [23, 0, 40, 7, 1]
TOTAL = sum(COUNTS)


@pytest.fixture
def directory(tmp_path: Path, kind: str) -> str:
    write_numbered(tmp_path / "data", COUNTS, kind)
    return str(tmp_path / "data")


def pairs(kind, directory, resume=None, remainder="drop"):
    part = shard_function(kind)(
        directory,
        columns=["x", "y"],
        seed=1,
        resume=resume,
        remainder=remainder,
    )
    return part.map(lambda row: (row["x"], tf.reshape(row["y"], [1])))


def fit_worker(kind, directory, remainder):
    """Weights, history, and the rows of each epoch."""
    model = training.distributed_model(3)
    data = pairs(kind, directory, remainder=remainder)
    rows = []

    def note(x, y):
        tf.numpy_function(lambda *row: rows.append(row), [x, y], [])
        return x, y

    callbacks = [
        ring.callbacks.BroadcastGlobalVariables(),
        ring.callbacks.MetricAverage(),
    ]
    batches = data.map(note).batch(training.BATCH)
    if remainder == "keep":
        batches = ring.data.join(batches)
    history = model.fit(batches, epochs=2, verbose=0, callbacks=callbacks).history
    return model.get_weights(), history, rows


@pytest.mark.parametrize(
    ("kind", "remainder", "size"),
    [
        ("parquet", "keep", 2),
        *(
            pytest.param(kind, remainder, size, marks=pytest.mark.slow)
            for kind, remainder, size in itertools.product(
                WRITERS, ["drop", "keep"], [2, 3]
            )
            if (kind, remainder, size) != ("parquet", "keep", 2)
        ),
    ],
)
def test_fit_trains_as_one_process_would(rank_pool, kind, directory, size, remainder):
    results = rank_pool(size).run(fit_worker, args=(kind, directory, remainder))

    model = training.compile_model(training.build(3), training.OPTIMIZERS["sgd"]())
    steps = []
    for epoch in (0, 1):
        parts = []
        for _, _, rows in results:
            count = len(rows) // 2
            parts.append(rows[epoch * count : (epoch + 1) * count])
        for start in range(0, max(map(len, parts)), training.BATCH):
            batch = [row for p in parts for row in p[start : start + training.BATCH]]
            steps.append(tuple(map(np.stack, zip(*batch, strict=True))))
    history = {}
    half = len(steps) // 2
    for epoch in (0, 1):
        of_epoch = steps[epoch * half : (epoch + 1) * half]
        data = tf.data.Dataset.from_generator(
            lambda of_epoch=of_epoch: iter(of_epoch),
            output_signature=(
                tf.TensorSpec([None, 6], tf.float32),
                tf.TensorSpec([None, 1], tf.float32),
            ),
        ).apply(tf.data.experimental.assert_cardinality(half))
        for name, values in model.fit(data, verbose=0).history.items():
            history.setdefault(name, []).extend(values)
    for weights, theirs, _ in results:
        assert training.largest_difference(weights, model.get_weights()) < 1e-5
        assert training.history_difference(theirs, history) < 1e-5


class Interrupt(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if int(self.model.optimizer.iterations) == 12:
            raise KeyboardInterrupt


def train(kind, directory, backup, *callbacks):
    model = training.distributed_model(3)
    model.build((None, 6))
    resume = ring.data.Resume()
    save = keras.callbacks.BackupAndRestore(backup, save_freq=5)
    training.fit(
        model,
        pairs(kind, directory, resume),
        training.BATCH,
        epochs=3,
        callbacks=[
            ring.callbacks.RootOnly(save),
            resume,
            ring.callbacks.BroadcastGlobalVariables(),
            *callbacks,
        ],
    )
    return training.as_bytes(model.get_weights())


def resume_worker(kind, directory, backups):
    whole = train(kind, directory, f"{backups}/whole")
    with pytest.raises(KeyboardInterrupt):
        train(kind, directory, f"{backups}/parts", Interrupt())
    return whole == train(kind, directory, f"{backups}/parts")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_a_run_resumes_in_the_middle_of_an_epoch(rank_pool, kind, directory, tmp_path):
    # An epoch has 8 steps.
    assert (
        rank_pool(2).run(resume_worker, args=(kind, directory, str(tmp_path)))
        == [True] * 2
    )


def orders_worker(directory, seed):
    """Rank 0 alone looks at its data before it trains."""
    part = ring.data.shard_parquet(directory, columns=["number"], seed=seed)
    rows = []

    def pair(row):
        tf.numpy_function(lambda number: rows.append(int(number)), [row["number"]], [])
        return tf.zeros([6]), tf.zeros([1])

    if ring.rank() == 0:
        next(iter(part))
    training.fit(
        training.distributed_model(3),
        part.map(pair),
        training.BATCH,
        epochs=2,
        callbacks=[ring.callbacks.BroadcastGlobalVariables()],
    )
    return rows


@pytest.mark.parametrize("kind", ["parquet"])
@pytest.mark.parametrize("seed", [None, pytest.param(1, marks=pytest.mark.slow)])
def test_a_look_at_the_data_on_one_rank_changes_no_order(rank_pool, directory, seed):
    results = rank_pool(2).run(orders_worker, args=(directory, seed))

    half = TOTAL // 2
    epochs = [
        [rows[epoch * half : (epoch + 1) * half] for rows in results]
        for epoch in (0, 1)
    ]
    for parts in epochs:
        assert len(set(itertools.chain(*parts))) == 2 * half
    assert (epochs[0] == epochs[1]) == (seed is None)


DOCUMENTED = {
    "parquet": (write_parquet, "Parquet"),
    "feather": (write_arrow, "Arrow and Feather"),
}


def documented_worker(directory, code):
    model = training.distributed_model(3)
    exec(code, {"ring": ring, "path": directory, "model": model})
    return training.as_bytes(model.get_weights()), int(model.optimizer.iterations)


@pytest.mark.parametrize("kind", variants(["parquet"], ["feather"]))
def test_what_the_docs_show_runs(rank_pool, tmp_path, kind):
    writer, heading = DOCUMENTED[kind]
    for number in range(2):
        table = numbered_table(35 * number, 35 * number + 35)
        writer(table, tmp_path / f"{number}.{kind}")
    text = (Path(__file__).parents[3] / "docs/data.md").read_text()
    code = text.split(f"## {heading}\n")[1].split("```python\n")[1].split("```")[0]

    results = rank_pool(2).run(documented_worker, args=(str(tmp_path), code))

    assert results[0] == results[1]
    assert results[0][1] == 4  # Two steps of at most 32 in each epoch.
