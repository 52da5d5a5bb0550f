"""Checkpoints, and ranks that die, disks that are full, files that are damaged."""

from __future__ import annotations

import json
import os
import resource
import select
import signal
from pathlib import Path

import keras
import pytest
from support import checkpointed, training
from support.checkpointed import StoppedError, StopsAfter, build, steps_per_epoch, train
from support.log_texts import LogTexts
from support.run_ranks import run_ranks

import ring_keras as ring
from ring_keras import keras_internals as internals
from ring_keras.callbacks.background_write import wait_for_all_writes
from ring_keras.callbacks.checkpoint_command import main
from ring_keras.callbacks.checkpoint_files import CheckpointFiles
from ring_keras.job import process_set

# More than a pipe takes at once.
WIDE = 200


def wide():
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(WIDE), keras.layers.Dense(WIDE), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((6,)), *layers])
    model.compile(ring.DistributedOptimizer(keras.optimizers.Adam(0.01)), loss="mse")
    return model


class DiesWhileItWrites(keras.callbacks.Callback):
    """Its part of a checkpoint goes into a pipe; kills itself when some of it is there.

    To be listed before the checkpoint, which is due after that many steps.
    """

    def __init__(self, directory, steps, ending):
        super().__init__()
        self._directory = Path(directory)
        self._steps = steps
        self._ending = ending
        self._pipe = None

    def on_train_batch_begin(self, batch, logs=None):
        steps = internals.steps_done_of(self.model)
        if steps == self._steps - 1:
            wait_for_all_writes()  # That of the checkpoint before, by the same name.
            token = json.loads((self._directory / "run.json").read_bytes())["token"]
            generation = process_set.generation()
            place = f"{ring.rank()}-of-{ring.size()}"
            name = f"unfinished.{token}-g{generation}.{place}{self._ending}"
            os.mkfifo(self._directory / name)
            self._pipe = os.open(self._directory / name, os.O_RDONLY | os.O_NONBLOCK)

    def on_train_batch_end(self, batch, logs=None):
        if internals.steps_done_of(self.model) == self._steps + 1:
            assert select.select([self._pipe], [], [], 60)[0]
            os.kill(os.getpid(), signal.SIGKILL)


def dying_worker(directory, victim, ending):
    ring.init()
    dies = DiesWhileItWrites(directory, 6, ending)
    others = [dies] if ring.rank() == victim else []
    train(directory, model=wide(), every=3, before=others)


def go_on_worker(directory):
    resumed = train(f"{directory}/parts", model=wide(), every=3)
    ring.barrier(name="removed")
    left = sorted(path.name for path in Path(directory, "parts").iterdir())
    return resumed == train(f"{directory}/whole", model=wide(), every=3), left


@pytest.mark.slow
@pytest.mark.parametrize(
    ("victim", "ending"),
    [
        (1, ".part"),
        (1, ".json"),
        (0, ".part"),
        (0, ".json"),
    ],
)
def test_a_rank_that_is_killed_leaves_the_checkpoint_before(
    rank_pool, tmp_path, victim, ending
):
    parts = tmp_path / "parts"
    arguments = (str(parts), victim, ending)
    outcomes = run_ranks(dying_worker, 2, args=arguments, timeout_s=120, check=False)

    assert outcomes[victim].signal == signal.SIGKILL, outcomes[victim].traceback
    assert outcomes[1 - victim].exception_type == "PeerLostError"
    files = CheckpointFiles(parts)
    assert [name.steps for name in files.complete()] == [3]
    found = {name.steps for name in files.found()}
    assert found == {3, 6}  # The other one's part is there, or some of this one's.
    assert main([str(parts), "--into", str(tmp_path / "it.keras")]) == 0
    keras.models.load_model(tmp_path / "it.keras")

    results = rank_pool(2).run(go_on_worker, args=(str(tmp_path),))
    for equal, left in results:
        assert equal
        # Nothing of the first run is there any more.
        assert left[0].startswith("run-0002-step-000000000012.")
        assert len(left) == 2 * 2 * 2 + 1


def full_worker(directory):
    limited = ring.rank() == 1
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    class Fills(keras.callbacks.Callback):
        """The disk of rank 1, from step 5 to 10."""

        def on_train_batch_end(self, batch, logs=None):
            steps = internals.steps_done_of(self.model)
            if limited and steps in (5, 10):
                wait_for_all_writes()  # Of the steps before.
                limit = 1000 if steps == 5 else soft
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))

    try:
        with LogTexts() as texts:
            train(directory, Fills(), every=3, keep=9)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    ring.barrier(name="removed")
    files = CheckpointFiles(directory)
    complete = [name.steps for name in files.complete()]
    return complete, len(files.found()), [text for text in texts if "RK517" in text]


@pytest.mark.slow
def test_a_full_disk_is_told_of_and_training_goes_on(rank_pool, tmp_path):
    first, second = rank_pool(2).run(full_worker, args=(str(tmp_path),))

    for complete, found, _ in (first, second):
        assert complete == [15, 12, 3]
        assert found == 3  # Those that can never be complete are gone.
    steps = ("step-000000000006", "step-000000000009")
    # At once, and on the first rank at the end of an epoch.
    assert [[step in text for step in steps] for text in second[2]] == [
        [True, False],
        [False, True],
    ]
    assert all(step in "".join(first[2]) for step in steps)
    assert all("rank 1: cannot write" in text for text in first[2])


def begun_worker(directory):
    with pytest.raises(StoppedError):
        train(directory, StopsAfter(8), every=3)
    wait_for_all_writes()


def resume_worker(directory):
    class Looks(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            self.steps = internals.steps_done_of(self.model)

    looks = Looks()
    try:
        with LogTexts() as texts:
            train(directory, looks, model=build(seed=9), every=3)
    except ring.RingKerasError as error:
        return str(error)
    steps = ring.allgather_object(looks.steps)[0]
    return steps, [text for text in texts if "RK658" in text]


def spoil(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_a_damaged_part_is_named_and_passed_over(rank_pool, tmp_path, capsys):
    parts = tmp_path / "parts"
    workers = rank_pool(2)
    workers.run(begun_worker, args=(str(parts),))
    [part] = parts.glob("*step-000000000006*1-of-2.part")
    spoil(part)
    into = str(tmp_path / "it.keras")
    assert main([str(parts), "--into", into]) == 1
    assert f"[RK518] the checkpoint of step 6 of run 1 is damaged: {part}: its " in (
        capsys.readouterr().err
    )
    [record] = parts.glob("*step-000000000003*0-of-2.json")
    whole = record.read_bytes()
    spoil(record)
    assert main([str(parts), "--step", "3", "--into", into]) == 1
    assert f"{record}: its record is not what was written" in capsys.readouterr().err
    # Both: it does not begin from nothing.
    failed = workers.run(resume_worker, args=(str(parts),))
    assert all("RK518" in text and str(record) in text for text in failed)
    record.write_bytes(whole)
    assert main([str(parts), "--step", "3", "--into", into]) == 0

    first, second = workers.run(resume_worker, args=(str(parts),))
    assert first[0] == second[0] == 3
    assert len(first[1]) == 1 and str(part) in first[1][0] and not second[1]


@pytest.mark.slow
def test_another_models_checkpoint_is_refused(rank_pool, tmp_path):
    rank_pool(2).run(begun_worker, args=(str(tmp_path),))
    for text in rank_pool(2).run(other_model_worker, args=(str(tmp_path),)):
        assert "RK518" in text and "is one of another model" in text
        assert "shape (40, 1) was saved" in text


def other_model_worker(directory):
    keras.utils.set_random_seed(1)
    layers = [
        keras.layers.Dense(40, activation="tanh"),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.3),
        keras.layers.Dense(2),
    ]
    model = keras.Sequential([keras.Input((6,)), *layers])
    model.compile(ring.DistributedOptimizer(keras.optimizers.Adam(0.01)), loss="mse")
    with pytest.raises(ring.RingKerasError) as caught:
        train(directory, model=model)
    return str(caught.value)


class Computes(keras.layers.Dense):
    def save_own_variables(self, store):
        store["half"] = self.kernel.numpy() / 2


def refused_worker(directory):
    def fit(model, **options):
        checkpoint = ring.callbacks.Checkpoint(directory, **options)
        with pytest.raises(ring.RingKerasError) as caught:
            training.fit(
                model,
                ring.data.shard(training.dataset(16)),
                4,
                callbacks=[checkpoint],
            )
        return str(caught.value)

    layer = Computes(3)
    model = keras.Sequential([keras.Input((6,)), layer, keras.layers.Dense(1)])
    model.compile(ring.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse")
    local = keras.layers.Dense(3)
    of_its_own = keras.Sequential([keras.Input((6,)), local, keras.layers.Dense(1)])
    of_its_own.compile(
        ring.DistributedOptimizer(keras.optimizers.SGD(0.1), local_layers=[local]),
        loss="mse",
    )
    apart = build(sync_every=2)
    other = build()
    elsewhere = build()
    own = f"{directory}/{ring.rank()}"
    swaps = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)

    def averaged():
        return build(keras.optimizers.SGD(0.1, use_ema=True))

    return [
        fit(model),
        fit(of_its_own),
        fit(apart),
        fit(other, every=2 + ring.rank()),
        _refused(lambda: train(directory, model=averaged(), before=[swaps])),
        _refused(lambda: train(own, model=elsewhere)),
    ]


def _refused(call):
    with pytest.raises(ring.RingKerasError) as caught:
        call()
    return str(caught.value)


def test_what_cannot_be_saved_is_refused(rank_pool, tmp_path):
    for texts in rank_pool(2).run(refused_worker, args=(str(tmp_path),)):
        assert "RK516" in texts[0] and "'computes' saves something else" in texts[0]
        assert "RK516" in texts[1] and "local_layers" in texts[1]
        assert "RK516" in texts[2] and "sync_every" in texts[2]
        assert "RK516" in texts[3] and "[3, 2, True] on rank 1" in texts[3]
        assert "RK516" in texts[4] and "before it" in texts[4]
        assert "RK518" in texts[5] and "one directory" in texts[5]


def not_continued_worker(directory):
    with LogTexts() as texts:
        model = build(seed=9)
        data = ring.data.shard(training.dataset(checkpointed.COUNT), seed=1)
        history = model.fit(
            data.batch(checkpointed.BATCH),
            epochs=checkpointed.EPOCHS,
            verbose=0,
            callbacks=[ring.callbacks.Checkpoint(directory)],
        )
    steps = internals.steps_done_of(model)
    return history.epoch, steps, [text for text in texts if "RK657" in text]


@pytest.mark.slow
def test_without_resume_an_epoch_begins_anew(rank_pool, tmp_path):
    steps = steps_per_epoch(2)
    rank_pool(2).run(middle_worker, args=(str(tmp_path), steps + 3))
    first, second = rank_pool(2).run(not_continued_worker, args=(str(tmp_path),))

    assert first[:2] == second[:2] == ([1], steps + 3 + steps)
    assert len(first[2]) == 1 and not second[2]


class RestoresOnRankOne(keras.callbacks.Callback):
    """As a callback with that root does."""

    def __init__(self, path):
        super().__init__()
        self._path = path

    def on_train_begin(self, logs=None):
        self.model.optimizer.build(self.model.trainable_variables)
        if ring.rank() == 1:
            self.model.load_weights(self._path)


def newer_elsewhere_worker(directory):
    model, parts = build(), f"{directory}/parts"
    path = f"{directory}/newer.weights.h5"
    with pytest.raises(StoppedError):
        train(parts, StopsAfter(5), model=model, every=3)
    wait_for_all_writes()
    if ring.rank() == 1:
        model.save_weights(path)
    data = ring.data.shard(training.dataset(checkpointed.COUNT), seed=1)
    callbacks = [
        RestoresOnRankOne(path),
        ring.callbacks.Checkpoint(parts),
        ring.callbacks.Distributed(root_rank=1),
    ]
    return _refused(
        lambda: build(seed=9).fit(
            data.batch(checkpointed.BATCH), verbose=0, callbacks=callbacks
        )
    )


@pytest.mark.slow
def test_what_another_rank_restores_is_not_taken_back(rank_pool, tmp_path):
    for text in rank_pool(2).run(newer_elsewhere_worker, args=(str(tmp_path),)):
        assert "[RK518] the newest checkpoint, of step 3 of run 1" in text
        assert "5 steps with which rank 1 begins" in text


def failed_worker(directory):
    model = build(seed=9)
    data = ring.data.shard(training.dataset(checkpointed.COUNT), seed=1)
    data = data.batch(checkpointed.BATCH)
    callbacks = [
        ring.callbacks.Checkpoint(directory),
        StopsAfter(steps_per_epoch(2) + 1),
    ]
    with pytest.raises(StoppedError):
        model.fit(data, epochs=checkpointed.EPOCHS, verbose=0, callbacks=callbacks)
    return model.fit(data, verbose=0).epoch


@pytest.mark.slow
def test_where_a_fit_began_that_failed_is_forgotten(rank_pool, tmp_path):
    rank_pool(2).run(middle_worker, args=(str(tmp_path), steps_per_epoch(2)))

    assert rank_pool(2).run(failed_worker, args=(str(tmp_path),)) == [[0]] * 2


def middle_worker(directory, steps):
    with pytest.raises(StoppedError):
        train(directory, StopsAfter(steps + 1), every=steps)
    wait_for_all_writes()
