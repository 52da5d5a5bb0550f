"""What the ranks write, and who writes it."""

from __future__ import annotations

from pathlib import Path

import keras
import pytest
from support import training
from support.features.directory import common_directory
from support.rank_processes import report
from support.run_ranks import run_ranks

import ring_keras as ring
from ring_keras.job.job import current_job

callbacks = ring.callbacks


def fit(model, *listed, epochs=2):
    data = ring.data.shard(training.dataset(8 * ring.size()))
    return training.fit(
        model,
        data,
        4,
        epochs=epochs,
        callbacks=[
            *listed,
            callbacks.BroadcastGlobalVariables(),
            callbacks.MetricAverage(),
        ],
    )


class Counts(keras.callbacks.Callback):
    """Every call it gets."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def set_model(self, model):
        self.calls.append("set_model")
        super().set_model(model)

    def on_train_batch_end(self, batch, logs=None):
        self.calls.append("on_train_batch_end")

    def on_epoch_end(self, epoch, logs=None):
        self.calls.append("on_epoch_end")

    def on_train_end(self, logs=None):
        self.calls.append("on_train_end")


def root_only_worker(root):
    counts = Counts()
    fit(training.distributed_model(1), callbacks.RootOnly(counts, root_rank=root))
    return counts.calls


@pytest.mark.parametrize("root", [0, 1])
def test_the_root_alone_is_called(rank_pool, root):
    results = rank_pool(2).run(root_only_worker, args=(root,))

    epoch = ["on_train_batch_end"] * 2 + ["on_epoch_end"]
    assert results[root] == ["set_model", *epoch, *epoch, "on_train_end"]
    assert results[1 - root] == []


def best_worker(save_weights_only):
    """The file is complete, and `best` known, on every rank when fit returns."""
    suffix = ".weights.h5" if save_weights_only else ".keras"
    checkpoint = callbacks.BestModelCheckpoint(
        monitor="loss", save_weights_only=save_weights_only
    )
    model = training.distributed_model(1)
    messages = []
    book = current_job().events
    _, told = book.since(0)
    for wrong in (None, "model.txt"):
        checkpoint.filepath = wrong
        with pytest.raises(ValueError, match="set its attribute `filepath`") as caught:
            fit(model, checkpoint)
        messages.append(str(caught.value))
    with common_directory() as directory:
        checkpoint.filepath = directory / f"best{suffix}"
        history = fit(model, checkpoint)
        loaded = training.distributed_model(2)
        loaded.build((None, 6))
        if save_weights_only:
            loaded.load_weights(checkpoint.filepath)
        else:
            loaded = keras.models.load_model(checkpoint.filepath)
        files = sorted(path.name for path in directory.iterdir())
    same = training.as_bytes(loaded.get_weights()) == training.as_bytes(
        model.get_weights()
    )
    events = [(one["kind"], one["text"]) for one in book.since(told)[0]]
    best = checkpoint.best
    return messages, files, same, best, history["loss"], events, checkpoint.filepath


@pytest.mark.parametrize(
    "save_weights_only", [False, pytest.param(True, marks=pytest.mark.slow)]
)
def test_the_best_model_is_saved_once(rank_pool, save_weights_only):
    results = rank_pool(2).run(best_worker, args=(save_weights_only,))
    for rank, result in enumerate(results):
        messages, files, same, best, losses, events, path = result
        suffix = ".weights.h5" if save_weights_only else ".keras"
        assert [suffix in message for message in messages] == [True, True]
        assert "filepath=None" in messages[0]
        assert "filepath='model.txt'" in messages[1]
        assert files == [f"best{suffix}"]
        assert same, "the loss falls in both epochs, so the last model is the best"
        assert best == pytest.approx(min(losses))
        saved = [
            ("checkpoint", f"BestModelCheckpoint saved {path} after step {steps}")
            for steps in (2, 4)
        ]
        assert events == (saved if rank == 0 else [])


def failing_best_worker(save_freq):
    """The rank that writes cannot; the other one is told."""
    model = training.distributed_model(1)
    with common_directory() as directory:
        path = directory / "is_a_directory.keras"
        if ring.rank() == 0:
            path.mkdir()
        checkpoint = callbacks.BestModelCheckpoint(
            "loss", filepath=path, save_freq=save_freq
        )
        with pytest.raises((OSError, ring.RankMismatchError)) as caught:
            fit(model, checkpoint)
    fit(model)
    return type(caught.value).__name__, str(caught.value)


@pytest.mark.parametrize(
    "save_freq", ["epoch", pytest.param(1, marks=pytest.mark.slow)]
)
def test_a_best_model_that_cannot_be_saved_ends_all(rank_pool, save_freq):
    worker = failing_best_worker
    first, second = rank_pool(2).run(worker, args=(save_freq,), timeout_s=60)

    assert first[0] != "RankMismatchError"
    assert second[0] == "RankMismatchError"
    assert "[RK310] ring_keras.callbacks.BestModelCheckpoint failed on" in second[1]
    assert "is_a_directory.keras" in second[1]


def failing_writers_worker():
    """Keras's own callbacks, which the root alone runs, on a disk that is full."""
    told = {}
    with common_directory() as directory:
        (directory / "file").write_text("no directory")
        writers = {
            "log": lambda: keras.callbacks.CSVLogger("/dev/full"),
            "model": lambda: keras.callbacks.ModelCheckpoint(
                str(directory / "file" / "{epoch}.keras")
            ),
            "model in an epoch": lambda: keras.callbacks.ModelCheckpoint(
                str(directory / "file" / "{epoch}.keras"), save_freq=1
            ),
            "backup": lambda: keras.callbacks.BackupAndRestore(
                str(directory / "file" / "backup")
            ),
            "board": lambda: keras.callbacks.TensorBoard(str(directory / "file" / "b")),
        }
        model = training.distributed_model(1)
        for kind, make in writers.items():
            with pytest.raises(Exception) as caught:
                fit(model, make())
            told[kind] = type(caught.value).__name__, str(caught.value)
    history = fit(training.distributed_model(1))
    return told, history["loss"]


@pytest.mark.slow
def test_a_file_that_the_root_cannot_write_ends_all(rank_pool):
    (first, loss), (second, others) = rank_pool(2).run(
        failing_writers_worker, timeout_s=60
    )

    for kind, (name, text) in first.items():
        other_name, other_text = second[kind]
        assert name != "RankMismatchError", kind
        assert other_name == "RankMismatchError", kind
        told = f"rank 0 cannot take part: its fit() raised {name}: "
        assert told in other_text
        assert other_text.partition(told)[2][:40] in text.replace("\n", " ")
    assert loss == others


def shared_files_worker(directory):
    """Two of three ranks write summaries."""
    ring.init()
    mine = Path(directory) / f"rank{ring.rank()}.csv"
    log = str(Path(directory) / "all.csv")
    some = [keras.callbacks.TensorBoard(directory)] if ring.rank() < 2 else []
    fit(
        training.distributed_model(1),
        keras.callbacks.CSVLogger(str(mine)),
        callbacks.RootOnly(keras.callbacks.CSVLogger(log)),
        *some,
        callbacks.BestModelCheckpoint(
            monitor="loss", filepath=str(Path(directory) / "best.keras")
        ),
    )


@pytest.mark.slow
def test_files_that_some_ranks_write_together_are_named(tmp_path):
    pytest.importorskip("tensorboard")

    outcomes = run_ranks(shared_files_worker, 3, args=(str(tmp_path),), check=False)

    assert all(outcome.ok for outcome in outcomes), report(outcomes, "files")
    warnings = [
        line for line in outcomes[0].stderr.splitlines() if "may spoil it" in line
    ]
    assert len(warnings) == 1
    assert f"ranks [0, 1] all write '{tmp_path}' (TensorBoard)" in warnings[0]
    assert "RootOnly()" in warnings[0]
    assert "may spoil it" not in outcomes[1].stderr


def plain_tensorboard_worker(folder):
    model = training.distributed_model(1)
    fit(model, keras.callbacks.TensorBoard(str(folder)))
    own = keras.callbacks.TensorBoard(str(folder / f"rank{ring.rank()}"))
    fit(model, own)


def test_one_process_writes_for_tensorboard(rank_pool, tmp_path):
    rank_pool(2).run(plain_tensorboard_worker, args=(tmp_path,))

    assert len(list((tmp_path / "train").glob("events*"))) == 1
    for rank in range(2):
        assert len(list((tmp_path / f"rank{rank}" / "train").glob("events*"))) == 1
