"""Backups on the disk: which one counts, and which ones are kept."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest

from ring_keras import RingKerasError
from ring_keras import keras_internals as internals
from ring_keras.callbacks.backup_files import BackupFiles
from ring_keras.callbacks.backup_writer import BackupWriter


def model_of(value):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(float(value)), "mse")
    model.optimizer.build(model.trainable_variables)
    model.set_weights([np.full(w.shape, value, w.dtype) for w in model.weights])
    return model


def save(files, steps, place=None):
    files.save(internals.weights_file(model_of(steps)), steps, place)


def restored(files):
    """What was noted, and the weights' value, which is the number of steps."""
    model = model_of(0)
    noted = files.restore(model)
    return noted, float(model.get_weights()[0][0, 0])


def flip(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def record(directory, steps):
    return directory / f"step-{steps:012}.json"


def weights(directory, steps):
    return directory / f"step-{steps:012}.weights.h5"


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def pairs(*steps):
    paths = [make(Path(), count) for count in steps for make in (record, weights)]
    return [path.name for path in paths]


def test_what_keras_leaves_out_of_its_file_is_noted(tmp_path):
    """The product of all steps of a Nadam that a LossScaleOptimizer has built."""

    def scaled_model():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        nadam = keras.optimizers.Nadam()
        model.compile(keras.optimizers.LossScaleOptimizer(nadam), "mse")
        return model

    def unfiled(model):
        (variable,) = internals.unfiled_state([model.optimizer]).values()
        return float(variable.numpy())

    saved, other = scaled_model(), scaled_model()
    saved.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0)
    writer = BackupWriter(BackupFiles(tmp_path))
    writer.save(saved, 1)
    writer.wait()

    assert writer.restore(other) == (1, writer.fit)
    assert unfiled(other) == unfiled(saved) != 1.0


def test_keras_reads_the_file_in_memory(tmp_path):
    model, other = model_of(3), model_of(0)
    path = tmp_path / "model.weights.h5"
    path.write_bytes(internals.weights_file(model))
    for variable in model.weights:  # The copy is one.
        variable.assign(variable + 1)

    other.load_weights(path)

    assert {float(w.min()) for w in other.get_weights()} == {3.0}
    assert float(other.optimizer.learning_rate.numpy()) == 3.0


def test_two_are_kept_and_nothing_else_is_removed(tmp_path):
    files = BackupFiles(tmp_path)
    (tmp_path / "step-of-mine.txt").write_text("not ours")
    weights(tmp_path, 1).write_text("of one that was killed before it was a backup")
    for steps in (2, 4, 10):
        save(files, steps)

    assert names(tmp_path) == [*pairs(4, 10), "step-of-mine.txt"]
    assert restored(files)[1] == 10
    (tmp_path / "unfinished.weights.h5").write_text("of one that was killed")
    files.clear()
    assert names(tmp_path) == ["step-of-mine.txt"]


def test_a_changed_record_is_not_believed(tmp_path):
    files = BackupFiles(tmp_path)
    save(files, 1, {"items": 8})
    save(files, 2, {"items": 16})
    whole = record(tmp_path, 2).read_bytes()

    for place in range(0, len(whole), 7):
        flip(record(tmp_path, 2), place)
        noted, value = restored(files)
        assert (noted["items"], value) == (8, 1), whole[: place + 1]
        record(tmp_path, 2).write_bytes(whole)
    assert restored(files)[0]["items"] == 16


@pytest.mark.parametrize("nbytes", [0, 1, 1000])
def test_truncated_weights_are_passed_over(tmp_path, nbytes):
    files = BackupFiles(tmp_path)
    save(files, 1)
    save(files, 2)
    content = weights(tmp_path, 2).read_bytes()
    weights(tmp_path, 2).write_bytes(content[:nbytes])

    assert restored(files)[1] == 1


def test_damaged_ones_do_not_stand_in_the_way_of_new_ones(tmp_path):
    files = BackupFiles(tmp_path)
    for steps in (10, 20):
        save(files, steps)
        flip(weights(tmp_path, steps), -1)

    assert restored(files) == (None, 0)
    save(files, 5)
    assert restored(files)[1] == 5
    save(files, 6)
    assert names(tmp_path) == pairs(5, 6)


def test_a_damaged_newer_one_is_not_the_newest(tmp_path):
    files = BackupFiles(tmp_path)
    save(files, 10)
    flip(weights(tmp_path, 10), -1)

    files.save_if_newest(internals.weights_file(model_of(5)), 5, {"items": 1})
    files.save_if_newest(internals.weights_file(model_of(4)), 4, {"items": 2})

    assert restored(files) == ({**restored(files)[0], "items": 1, "steps": 5}, 5)


def test_an_error_names_the_path_and_the_free_space(tmp_path):
    files = BackupFiles(tmp_path)
    save(files, 1)
    (tmp_path / "unfinished.weights.h5").symlink_to("/dev/full")

    with pytest.raises(RingKerasError) as caught:
        save(files, 2)

    assert str(weights(tmp_path, 2)) in str(caught.value)
    assert "No space left on device" in str(caught.value)
    assert "bytes are free there" in str(caught.value)
    assert names(tmp_path) == pairs(1)
    save(files, 2)
    assert restored(files)[1] == 2
