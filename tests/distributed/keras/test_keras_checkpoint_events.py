"""Who saved what, and when: on TensorBoard's page and in `ringrun --event-log`."""

from __future__ import annotations

import gc
import json
from pathlib import Path

import keras
import pytest
from support import training
from support.event_files import read
from support.ringrun import Ringrun

import ring_keras as ring
from ring_keras.job.job import current_job
from ring_keras.monitoring import records

STEPS, EPOCHS = 4, 2


class SavesAtTheEnd(keras.callbacks.Callback):
    """As a program's own callback may."""

    def __init__(self, path):
        super().__init__()
        self._path = path

    def on_train_end(self, logs=None):
        self.model.save_weights(filepath=self._path)


class Raises(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        raise ValueError("after the first epoch")


def new_model():
    model = training.distributed_model(1)
    model.build((None, 6))
    return model


def fit(model, *callbacks):
    data = ring.data.shard(training.dataset(STEPS * 4 * ring.size()))
    training.fit(
        model,
        data,
        4,
        epochs=EPOCHS,
        callbacks=[ring.callbacks.BroadcastGlobalVariables(), *callbacks],
    )


def checkpoints(since):
    """Those that this rank has noted."""
    return [
        one["text"]
        for one in current_job().events.since(since)[0]
        if one["kind"] == "checkpoint"
    ]


def count():
    return current_job().events.since(0)[1]


def is_as_before(model):
    return not {"save", "save_weights"} & set(vars(model))


def save_in_many_ways(directory):
    since, model = count(), new_model()
    own = ring.callbacks.RootOnly
    fit(
        model,
        ring.callbacks.TensorBoard(f"{directory}/logs"),
        own(keras.callbacks.ModelCheckpoint(f"{directory}/{{epoch}}.keras")),
        own(
            keras.callbacks.BackupAndRestore(
                f"{directory}/backup", save_freq=3, delete_checkpoint=False
            )
        ),
        own(SavesAtTheEnd(f"{directory}/last.weights.h5"), root_rank=1),
        keras.callbacks.LambdaCallback(
            on_train_end=lambda logs: (
                model.save(f"{directory}/lambda.keras") if ring.rank() == 1 else None
            )
        ),
    )
    model.save(f"{directory}/by_hand{ring.rank()}.keras")
    return checkpoints(since), is_as_before(model)


def test_what_any_callback_saves_is_noted(tmp_path, rank_pool):
    noted = rank_pool(2).run(save_in_many_ways, args=(str(tmp_path),))
    assert [as_before for _, as_before in noted] == [True, True]
    backup = f"BackupAndRestore saved {tmp_path}/backup/latest.weights.h5"
    first = [
        f"{backup} after step 3",
        f"ModelCheckpoint saved {tmp_path}/1.keras after step 4",
        f"{backup} after step 6",
        f"ModelCheckpoint saved {tmp_path}/2.keras after step 8",
    ]
    last = [
        f"SavesAtTheEnd saved {tmp_path}/last.weights.h5 after step 8",
        f"A callback saved {tmp_path}/lambda.keras after step 8",
    ]
    assert [found for found, _ in noted] == [first, last]
    for path in ("1.keras", "2.keras", "last.weights.h5"):
        assert (tmp_path / path).exists()

    _, contents = read(tmp_path / "logs" / "train")
    shown = [
        (event["rank"], event["text"])
        for _, events in contents[records.EVENTS]
        for event in events
        if event["kind"] == "checkpoint"
    ]
    # TensorBoard's file was closed before the last one.
    assert shown == [(0, text) for text in first]


def own_save(path, **options):
    """What a program may have put in the place of a model's method."""


def save_where_fit_raises(directory):
    model = new_model()
    model.save = own_save
    before = dict(vars(model))
    saves = keras.callbacks.ModelCheckpoint(
        f"{directory}/{ring.rank()}.weights.h5", save_weights_only=True
    )
    since = count()
    with pytest.raises(ValueError, match="after the first epoch"):
        fit(model, saves, Raises())
    gc.collect()
    first = checkpoints(since)
    model.save_weights(f"{directory}/{ring.rank()}.weights.h5")
    after = dict(vars(model))
    fit(model, saves)
    same = all(
        vars.get(name) is before.get(name)
        for vars in (after, dict(vars(model)))
        for name in ("save", "save_weights")
    )
    return first, checkpoints(since), same


def test_a_fit_that_raises_leaves_nothing_behind(tmp_path, rank_pool):
    results = rank_pool(2).run(save_where_fit_raises, args=(str(tmp_path),))
    for rank, (first, noted, same) in enumerate(results):
        text = f"ModelCheckpoint saved {tmp_path}/{rank}.weights.h5 after step"
        assert first == [f"{text} 4"]
        assert noted == [f"{text} {steps}" for steps in (4, 8, 12)]
        assert same, "save and save_weights are as they were"


def save_at_the_same_time(directory):
    """A `fit` in a callback of another, of the same model."""
    model, since = new_model(), count()
    inner = keras.callbacks.ModelCheckpoint(f"{directory}/{ring.rank()}inner.keras")
    outer = keras.callbacks.ModelCheckpoint(f"{directory}/{ring.rank()}outer.keras")

    class FitsAgain(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 0:
                fit(model, inner)

    fit(model, FitsAgain(), outer)
    return [Path(text.split()[2]).name for text in checkpoints(since)], is_as_before(
        model
    )


def test_a_fit_inside_another_ends_none_of_its_notes(tmp_path, rank_pool):
    results = rank_pool(2).run(save_at_the_same_time, args=(str(tmp_path),))
    for rank, (saved, as_before) in enumerate(results):
        names = ["inner"] * EPOCHS + ["outer"] * EPOCHS
        assert saved == [f"{rank}{name}.keras" for name in names]
        assert as_before


def back_up(directory):
    since = count()
    fit(new_model(), ring.callbacks.Preemption(directory))
    return checkpoints(since)


def test_backups_are_noted_when_they_are_on_the_disk(tmp_path, rank_pool):
    noted = rank_pool(2).run(back_up, args=(str(tmp_path / "backup"),))
    backup = f"Preemption saved {tmp_path}/backup/step-"
    assert noted == [
        [f"{backup}{steps:012}.weights.h5 after step {steps}" for steps in (4, 8)],
        [],
    ]


SCRIPT = """
import keras, numpy
import ring_keras as ring
ring.init()
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile(ring.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
ones = numpy.ones([8, 2], "float32")
path = f"{DIRECTORY}/{ring.rank()}.keras"
model.fit(ones, ones[:, :1], batch_size=4, verbose=0, callbacks=[
    ring.callbacks.BroadcastGlobalVariables(), keras.callbacks.ModelCheckpoint(path)])
"""


@pytest.mark.slow
def test_ringrun_logs_them(tmp_path):
    log = tmp_path / "events.jsonl"
    ringrun = Ringrun(tmp_path)
    try:
        script = f"DIRECTORY = {str(tmp_path)!r}\n{SCRIPT}"
        process = ringrun.start(script, "--event-log", str(log))
        assert ringrun.finish(process).returncode == 0
    finally:
        ringrun.close()
    events = [json.loads(line) for line in log.read_text().splitlines()]
    saved = [
        (one["rank"], one["text"]) for one in events if one["kind"] == "checkpoint"
    ]
    assert sorted(saved) == [
        (rank, f"ModelCheckpoint saved {tmp_path}/{rank}.keras after step 2")
        for rank in (0, 1)
    ]
