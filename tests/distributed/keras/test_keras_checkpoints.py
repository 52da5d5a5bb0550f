"""Checkpoints of which each rank writes a part in the background."""

from __future__ import annotations

import subprocess
import sys

import keras
import pytest
from support import checkpointed, training
from support.checkpointed import (
    SavesWhole,
    StoppedError,
    StopsAfter,
    build,
    contents,
    steps_per_epoch,
    train,
)

import ring_keras as ring
from ring_keras.callbacks.background_write import wait_for_all_writes
from ring_keras.callbacks.checkpoint_command import main
from ring_keras.callbacks.checkpoint_files import CheckpointFiles

MODELS = {
    "adam": build,
    "sharded": lambda **seed: build(shard_state=True, **seed),
    "loss_scaled": lambda **seed: build(
        keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD(0.1, momentum=0.9, use_ema=True)
        ),
        **seed,
    ),
    # Of which Keras's files lack a variable.
    "loss_scaled_nadam": lambda **seed: build(
        keras.optimizers.LossScaleOptimizer(keras.optimizers.Nadam(0.01)), **seed
    ),
    "accumulation": lambda **seed: build(
        keras.optimizers.SGD(0.1, momentum=0.9, gradient_accumulation_steps=2), **seed
    ),
}


def merged(directory, step, into):
    assert main([str(directory), "--step", str(step), "--into", str(into)]) == 0
    return contents(into)


def whole_worker(directory, make):
    whole = SavesWhole(directory, every=3)
    train(f"{directory}/parts", whole, model=MODELS[make](), every=3, keep=9)
    files = CheckpointFiles(f"{directory}/parts")
    return [name.steps for name in files.complete()]


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("make", MODELS)
@pytest.mark.slow
def test_a_merged_file_is_that_of_model_save(rank_pool, tmp_path, make, size):
    results = rank_pool(size).run(whole_worker, args=(str(tmp_path), make))

    last = steps_per_epoch(size) * checkpointed.EPOCHS
    steps = list(range(3, last + 1, 3))
    assert results == [steps[::-1]] * size
    for step in steps:
        saved = contents(tmp_path / f"whole-{step}-0.keras")
        assert merged(tmp_path / "parts", step, tmp_path / "one.keras") == saved


def resumed_worker(directory, make, cut):
    whole = train(f"{directory}/whole", model=MODELS[make](), every=3)
    with pytest.raises(StoppedError):
        train(f"{directory}/parts", StopsAfter(cut), model=MODELS[make](), every=3)
    # Other weights, other random numbers: nothing is left that it could go on with.
    resumed = train(f"{directory}/parts", model=MODELS[make](seed=9), every=3)
    ring.barrier(name="removed")
    files = CheckpointFiles(f"{directory}/parts")
    return resumed == whole, [(name.run, name.steps) for name in files.complete()]


@pytest.mark.parametrize(("size", "cut"), [(1, 5), (2, 5), (2, 10), (3, 7)])
@pytest.mark.parametrize("make", MODELS)
@pytest.mark.slow
def test_a_resumed_run_ends_with_the_same_bits(rank_pool, tmp_path, make, size, cut):
    results = rank_pool(size).run(resumed_worker, args=(str(tmp_path), make, cut))

    last = steps_per_epoch(size) * checkpointed.EPOCHS // 3 * 3
    for equal, complete in results:
        assert equal
        assert complete == [(2, last), (2, last - 3)]


class FirstStep(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if not hasattr(self, "steps"):
            self.steps = int(self.model.optimizer.iterations)


def whose_checkpoint_worker(directory):
    train(f"{directory}/folds", every=3)
    other_fold = train(f"{directory}/folds", model=build(seed=5), every=3)
    assert other_fold == train(f"{directory}/alone", model=build(seed=5), every=3)

    second = ring.callbacks.Checkpoint(f"{directory}/second")
    with pytest.raises(ring.RingKerasError, match=r"RK516.*more than once"):
        train(f"{directory}/first", second)


def test_a_fit_takes_no_other_fits_checkpoint(rank_pool, tmp_path):
    rank_pool(2).run(whose_checkpoint_worker, args=(str(tmp_path),))


def runs_that_end_worker(directory):
    # What was gone on with, to the end, without a checkpoint more.
    with pytest.raises(StoppedError):
        train(f"{directory}/cut", StopsAfter(5), every=3)
    train(f"{directory}/cut", every=99)
    alone = train(f"{directory}/alone", model=build(seed=5), every=3)
    assert alone == train(f"{directory}/cut", model=build(seed=5), every=3)

    # A run that nobody goes on with has come further than the one after it.
    with pytest.raises(StoppedError):
        train(f"{directory}/runs", StopsAfter(7), every=3)
    model, first = build(), FirstStep()
    with pytest.raises(StoppedError):
        train(f"{directory}/runs", StopsAfter(5), model=model, every=3, restore=False)
    train(f"{directory}/runs", first, model=model, every=3)
    assert first.steps == 5


@pytest.mark.slow
def test_a_fit_takes_the_checkpoint_of_the_run_that_it_continues(rank_pool, tmp_path):
    rank_pool(2).run(runs_that_end_worker, args=(str(tmp_path),))


def begun_worker(directory):
    with pytest.raises(StoppedError):
        train(directory, StopsAfter(steps_per_epoch(ring.size()) + 1))
    wait_for_all_writes()


class Looks(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if not hasattr(self, "first"):
            self.first = checkpointed.everything_common(self.model)


def other_size_worker(directory, options):
    looks = Looks()
    model = build(seed=9, **options)
    resume = ring.data.Resume()
    data = ring.data.shard(training.dataset(32), seed=1, resume=resume)
    data = data.batch(32 // ring.size() // steps_per_epoch(2))
    # As many steps in an epoch as before: so it begins with the second.
    history = model.fit(
        data,
        epochs=2,
        verbose=0,
        callbacks=[ring.callbacks.Checkpoint(directory), resume, looks],
    )
    return looks.first, history.epoch, len(set(ring.allgather_object(looks.first)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "options"),
    [
        (1, {}),
        (4, {}),
        (4, {"shard_state": True}),
        (1, {"shard_state": True}),
    ],
)
def test_any_number_of_ranks_continues(rank_pool, tmp_path, size, options):
    rank_pool(2).run(begun_worker, args=(str(tmp_path / "parts"),))
    merged(tmp_path / "parts", steps_per_epoch(2), tmp_path / "it.keras")
    results = rank_pool(size).run(
        other_size_worker, args=(str(tmp_path / "parts"), options)
    )

    model = keras.models.load_model(tmp_path / "it.keras")
    for first, epochs, different in results:
        assert first == checkpointed.everything_common(model)
        assert (epochs, different) == ([1], 1)


_LOADS = """
import sys
import keras
model = keras.models.load_model(sys.argv[1])
assert not any(name.split(".")[0] == "ring_keras" for name in sys.modules)
print(int(model.optimizer.iterations), len(model.optimizer.variables))
"""


@pytest.mark.slow
def test_the_command_makes_a_file_for_keras_alone(rank_pool, tmp_path, capsys):
    parts, it = tmp_path / "parts", tmp_path / "it.keras"
    rank_pool(2).run(begun_worker, args=(str(parts),))
    steps = steps_per_epoch(2)
    assert main([str(parts)]) == 0
    assert capsys.readouterr().out == (
        f"step {steps} of run 1: 2 of 2 parts, complete\n"
    )
    tool = [sys.executable, "-m", "ring_keras", "checkpoint", str(parts)]
    made = subprocess.run(
        [*tool, "--into", str(it)], capture_output=True, text=True, timeout=120
    )
    assert made.stdout == f"{it}: the checkpoint of step {steps} of run 1, by 2 ranks\n"
    loaded = subprocess.run(
        [sys.executable, "-c", _LOADS, str(it)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
    )
    assert loaded.stdout.split() == [str(steps), "14"], loaded.stderr
    weights = tmp_path / "it.weights.h5"
    assert main([str(parts), "--into", str(weights)]) == 0
    model = keras.models.load_model(it)
    before = checkpointed.everything(model)
    for variable in [*model.weights, *model.optimizer.variables]:
        variable.assign(variable * 0)
    model.load_weights(weights)
    assert checkpointed.everything(model) == before
    assert main([str(parts), "--into", str(it), "--step", "3"]) == 1
    assert f"Complete are those of steps: {steps}." in capsys.readouterr().err


def executions_worker(directory):
    def model(seed=1):
        made = build(seed=seed)
        made.compile(
            made.optimizer, loss="mse", steps_per_execution=2, jit_compile=True
        )
        return made

    whole = train(f"{directory}/whole", model=model(), every=3)
    with pytest.raises(StoppedError):
        train(f"{directory}/parts", StopsAfter(8), model=model(), every=3)
    resumed = train(f"{directory}/parts", model=model(9), every=3, keep=9)
    ring.barrier(name="removed")
    files = CheckpointFiles(f"{directory}/parts")
    return resumed == whole, [name.steps for name in files.complete()]


@pytest.mark.slow
def test_several_steps_of_one_execution(rank_pool, tmp_path):
    for result in rank_pool(2).run(executions_worker, args=(str(tmp_path),)):
        # After the execution in which they are due.
        assert result == (True, [16, 12, 10, 6, 4])


class Undescribed(keras.layers.Dense):
    def get_config(self):
        raise NotImplementedError("no idea")


def undescribed_worker(directory):
    model = keras.Sequential([keras.Input((6,)), Undescribed(1)])
    model.compile(ring.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse")
    train(directory, model=model)


@pytest.mark.slow
def test_a_model_without_a_description_has_weights(rank_pool, tmp_path, capsys):
    rank_pool(1).run(undescribed_worker, args=(str(tmp_path),))

    assert main([str(tmp_path), "--into", str(tmp_path / "it.keras")]) == 1
    assert "RK519" in (text := capsys.readouterr().err) and "no idea" in text
    assert main([str(tmp_path), "--into", str(tmp_path / "it.weights.h5")]) == 0
