"""A `fit` that a signal ends goes on, when it is started again, where it was."""

from __future__ import annotations

import os
import signal

import keras
import pytest
from support import training
from support.preempted import EPOCHS, Sends, names, steps_per_epoch, train
from support.processes import wait_until
from support.run_ranks import run_ranks

import ring_keras as ring
from ring_keras import keras_internals as internals
from ring_keras.callbacks.backup_files import BackupFiles, unfiled_values


def signal_worker(directory, ranks, number):
    before = signal.getsignal(number)
    whole, history = train(f"{directory}/whole", signals=[number])
    saved = f"{directory}/parts"
    steps = steps_per_epoch(ring.size())
    cuts = [2, steps + 3, 2 * steps]  # The last one is that of an epoch.
    for cut in cuts:
        sends = Sends(number, ranks, step=cut)
        with pytest.raises(SystemExit) as caught:
            train(saved, sends, validates=True, signals=[number])
        assert caught.value.code == 128 + number
        # The cut epoch is not validated, the others are.
        assert sends.validated == 2 * ((cut - 1) // steps - _begun(cuts, cut, steps))
        ring.barrier(name="saved")
        assert f"step-{cut:012}.json" in names(saved)
        signal.signal(number, before)
    ring.barrier(name="looked")
    resumed, later = train(saved, signals=[number])
    ring.barrier(name="removed")
    assert not names(saved) and not names(f"{directory}/whole")
    assert signal.getsignal(number) == before
    return resumed == whole, history["loss"][-1], later["loss"][-1], whole


def sharded_worker(directory, make):
    """All ranks take part in each save, and each takes its part of the backup."""
    number = signal.SIGUSR1
    before = signal.signal(number, signal.SIG_IGN)
    whole, _ = train(f"{directory}/whole", optimizer=make(), signals=[number])
    saved = f"{directory}/parts"
    steps = steps_per_epoch(ring.size())
    for cut in (2, steps + 3):
        with pytest.raises(SystemExit):
            train(
                saved,
                Sends(number, [1], step=cut),
                optimizer=make(),
                shard_state=True,
                signals=[number],
            )
        ring.barrier(name="saved")
        assert f"step-{cut:012}.json" in names(saved)
    ring.barrier(name="looked")
    resumed, _ = train(saved, optimizer=make(), shard_state=True, signals=[number])
    signal.signal(number, before)
    return resumed == whole


def scaled_nadam():
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.Nadam(0.01))


@pytest.mark.slow
@pytest.mark.parametrize("make", [keras.optimizers.Adam, scaled_nadam])
def test_a_divided_state_is_saved_by_all(rank_pool, tmp_path, make):
    results = rank_pool(3).run(sharded_worker, args=(tmp_path, make), timeout_s=120)

    assert all(results)


def full_disk_worker(directory):
    """The rank that saves cannot; the others are in the save, too, and hear of it."""
    with pytest.raises(ring.RingKerasError, match=r"\[RK610\].*rank 0 cannot save"):
        train(directory, shard_state=True)
    return ring.allgather_object(ring.rank())


@pytest.mark.slow
def test_a_save_of_all_that_cannot_be_written_ends_all(rank_pool, tmp_path):
    link = tmp_path / "link"  # No directory can be made there.
    link.symlink_to(tmp_path / "nowhere")

    results = rank_pool(2).run(full_disk_worker, args=(link,))

    assert results == [[0, 1]] * 2


def failing_layer_worker(directory, failing):
    """One rank fails before its optimizer is asked, where the others wait."""
    ring.init()
    if ring.rank() == failing:

        def fails(layer, store):
            raise OSError("no room for the layer")

        keras.layers.Dense.save_own_variables = fails
    with pytest.raises(ring.RingKerasError, match="no room for the layer"):
        train(directory, shard_state=True)
    return ring.allgather_object(ring.rank())


@pytest.mark.slow
@pytest.mark.parametrize("failing", [0, 1])
def test_a_save_of_all_fails_on_all_alike(tmp_path, failing):
    results = run_ranks(failing_layer_worker, 2, args=(tmp_path, failing))

    assert results == [[0, 1]] * 2


class SendsAtTheEnd(keras.callbacks.Callback):
    """To rank 0, which waits for rank 1 with its backup, once more than is needed."""

    def __init__(self, directory):
        super().__init__()
        self.waits = directory / "waits"

    def on_train_end(self, logs=None):
        pids = ring.allgather_object(os.getpid(), name="pids")
        if ring.rank() == 0:
            self.waits.touch()
            return
        wait_until(self.waits.exists, "rank 0 comes to the end")
        for _ in range(2):
            os.kill(pids[0], signal.SIGUSR1)


def late_signal_worker(directory):
    sends = SendsAtTheEnd(directory)
    preemption = ring.callbacks.Preemption(
        directory / "backup", signals=[signal.SIGUSR1]
    )
    before = signal.getsignal(signal.SIGUSR1)
    with pytest.raises(SystemExit) as caught:
        training.fit(
            training.distributed_model(1),
            ring.data.shard(training.dataset(16)),
            4,
            callbacks=[sends, preemption],
        )
    assert signal.getsignal(signal.SIGUSR1) == before
    return caught.value.code, names(directory / "backup")


def test_a_signal_while_the_last_backup_is_written_ends_all(rank_pool, tmp_path):
    results = rank_pool(2).run(late_signal_worker, args=(tmp_path,), timeout_s=60)

    for code, files in results:
        assert code == 128 + signal.SIGUSR1
        assert "step-000000000002.json" in files


class Ends(keras.callbacks.Callback):
    """Signals this process at the end, and notes what happens there."""

    def __init__(self, events, sends):
        super().__init__()
        self.events = events
        self.sends = sends

    def on_train_end(self, logs=None):
        if self.sends:
            os.kill(os.getpid(), signal.SIGUSR1)
        self.events.append("a callback has ended")


def too_late_worker(directory):
    """After the last backup a signal comes to rank 1 alone."""
    events = []
    before = signal.signal(signal.SIGUSR1, lambda *_: events.append("signal"))
    try:
        training.fit(
            training.distributed_model(1),
            ring.data.shard(training.dataset(16)),
            4,
            callbacks=[
                ring.callbacks.Preemption(directory, signals=[signal.SIGUSR1]),
                Ends(events, sends=ring.rank() == ring.size() - 1),
                Ends(events, sends=False),
            ],
        )
    finally:
        signal.signal(signal.SIGUSR1, before)
    return events


@pytest.mark.parametrize("size", [2, pytest.param(1, marks=pytest.mark.slow)])
def test_a_signal_after_the_last_backup_cuts_no_callback_off(rank_pool, tmp_path, size):
    results = rank_pool(size).run(too_late_worker, args=(tmp_path,), timeout_s=60)

    ended = ["a callback has ended"] * 2
    assert results == [ended] * (size - 1) + [[*ended, "signal"]]


def _begun(cuts, cut, steps):
    """The epoch in which the start before was cut."""
    earlier = [other for other in cuts if other < cut]
    return earlier[-1] // steps if earlier else 0


@pytest.mark.parametrize(
    ("size", "ranks", "number"),
    [
        (2, [1], signal.SIGTERM),
        pytest.param(2, [0, 1], signal.SIGUSR1, marks=pytest.mark.slow),
        pytest.param(1, [0], signal.SIGTERM, marks=pytest.mark.slow),
    ],
)
def test_a_resumed_run_ends_with_the_same_bits(
    rank_pool, tmp_path, size, ranks, number
):
    arguments = (str(tmp_path), ranks, number)
    results = rank_pool(size).run(signal_worker, args=arguments, timeout_s=170)

    assert all(equal for equal, *_ in results)
    assert len({weights for *_, weights in results}) == 1


def validation_worker(directory):
    ring.init()
    sends = Sends(signal.SIGTERM, [0, 1], in_validation_of=1)
    train(directory, sends, validates=True)


@pytest.mark.slow
def test_validation_ends_at_once(tmp_path):
    outcomes = run_ranks(validation_worker, 2, args=(str(tmp_path),), check=False)

    assert [outcome.exception_type for outcome in outcomes] == ["SystemExit"] * 2
    steps = steps_per_epoch(2)
    saved = [f"step-{steps * epoch:012}" for epoch in (1, 2)]
    expected = [f"{name}{end}" for name in saved for end in (".json", ".weights.h5")]
    assert names(tmp_path) == expected


def other_model_worker(directory):
    with pytest.raises(SystemExit):
        train(directory, Sends(signal.SIGTERM, [0], step=2))
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
    training.compile_model(model, keras.optimizers.Adam(0.01))
    callbacks = [ring.callbacks.Preemption(directory)]
    with pytest.raises((ValueError, ring.RingKerasError)) as caught:
        training.fit(model, training.dataset(8), 4, callbacks=callbacks)
    return type(caught.value).__name__, str(caught.value)


def test_what_cannot_be_restored_is_an_error_of_all(rank_pool, tmp_path):
    first, second = rank_pool(2).run(other_model_worker, args=(str(tmp_path),))

    assert first[0] == "ValueError"
    assert second[0] == "RingKerasError"
    assert "rank 0 cannot restore its backup" in second[1]


def backup_of_elastic_worker(directory):
    if ring.rank() == 0:
        model = training.compile_model(training.build(3), keras.optimizers.Adam(0.01))
        model.optimizer.build(model.trainable_variables)
        place = {"size": 2, "epoch": 1, "items": 20, "executions": 3}
        place |= unfiled_values(model)
        BackupFiles(directory).save(internals.weights_file(model), 11, place)
    ring.barrier(name="saved")
    with pytest.raises((ValueError, ring.RingKerasError)) as caught:
        train(directory)
    return str(caught.value)


@pytest.mark.slow
def test_a_backup_of_elastic_is_no_place_in_the_data(rank_pool, tmp_path):
    first, second = rank_pool(2).run(backup_of_elastic_worker, args=(str(tmp_path),))

    assert "[RK685]" in first
    assert "after 20 items of epoch 1 (the first is 0)" in first
    assert "rank 0 cannot restore its backup" in second


def unbuilt_worker(directory):
    model = keras.Sequential([keras.layers.Dense(1)])
    training.compile_model(model, keras.optimizers.Adam(0.01))
    callbacks = [ring.callbacks.Preemption(directory)]
    with pytest.raises(ring.RingKerasError, match=r"RK334.*not built"):
        training.fit(model, training.dataset(8), 4, callbacks=callbacks)
    return names(directory)


def test_a_model_that_is_not_built_is_refused_at_the_first_start(rank_pool, tmp_path):
    assert rank_pool(2).run(unbuilt_worker, args=(str(tmp_path),)) == [[], []]


def alone_in_validation_worker(directory, averages, epoch):
    before = signal.getsignal(signal.SIGTERM)
    whole, _ = train(f"{directory}/whole", averages=averages)
    saved = f"{directory}/parts"
    sends = Sends(signal.SIGTERM, [1], in_validation_of=epoch)
    with pytest.raises(SystemExit) as caught:
        train(saved, sends, validates=True, averages=averages)
    signal.signal(signal.SIGTERM, before)
    ring.barrier(name="saved")
    left = names(saved)
    ring.barrier(name="looked")
    resumed, _ = train(saved, averages=averages)
    return caught.value.code, sends.validated, sends.ended, left, resumed == whole


@pytest.mark.slow
@pytest.mark.parametrize(
    ("averages", "epoch"),
    [
        (True, 1),
        pytest.param(False, 1, marks=pytest.mark.slow),
        pytest.param(True, EPOCHS - 1, marks=pytest.mark.slow),
        pytest.param(False, EPOCHS - 1, marks=pytest.mark.slow),
    ],
)
def test_a_signal_to_one_rank_in_validation_ends_all_alike(
    rank_pool, tmp_path, averages, epoch
):
    arguments = (str(tmp_path), averages, epoch)
    results = rank_pool(2).run(alone_in_validation_worker, args=arguments)

    newest = f"step-{steps_per_epoch(2) * (epoch + 1):012}.json"
    # The one with the signal ends after the first batch of two, and no callback gets
    # to see the metrics of a part.
    validated = [2 * epoch + 2, 2 * epoch + 1]
    for result, expected in zip(results, validated, strict=True):
        code, batches, ended, left, equal = result
        assert (code, batches, ended) == (143, expected, epoch)
        assert newest in left
        assert equal


class Fails(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        raise KeyError("a callback failed")


def lost_in_the_last_validation_worker(directory):
    sends = Sends(signal.SIGTERM, [0, 1], in_validation_of=EPOCHS - 1)
    with pytest.raises(SystemExit):
        train(directory, sends, validates=True)
    ring.barrier(name="lost")
    weights, _ = train(directory)
    return weights


@pytest.mark.slow
def test_a_restored_end_is_that_of_all_ranks(rank_pool, tmp_path):
    worker = lost_in_the_last_validation_worker
    first, second = rank_pool(2).run(worker, args=(str(tmp_path),))

    assert first == second


def after_failure_worker(directory):
    received = []

    def handle(number, frame):
        received.append(number)

    before = signal.signal(signal.SIGTERM, handle)
    try:
        with pytest.raises(KeyError):
            train(directory, Fails())
        model = training.compile_model(training.build(3), keras.optimizers.Adam(0.01))
        sends = Sends(signal.SIGTERM, [0, 1], step=1)
        # A plain one is none of ours, whichever fit failed before.
        training.fit(model, training.dataset(8), 4, callbacks=[sends])
        assert not model.stop_training
        return received, signal.getsignal(signal.SIGTERM) is handle
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.slow
def test_a_signal_after_a_fit_that_failed_is_the_scripts(rank_pool, tmp_path):
    for result in rank_pool(2).run(after_failure_worker, args=(str(tmp_path),)):
        assert result == ([signal.SIGTERM], True)


def no_room_worker(directory):
    sends = Sends(signal.SIGTERM, [1], step=3)
    with pytest.raises(ring.RingKerasError) as caught:
        train(f"{directory}/file/backup", sends)
    return str(caught.value)


@pytest.mark.slow
def test_a_directory_that_cannot_be_is_an_error_before_training(rank_pool, tmp_path):
    (tmp_path / "file").write_text("no directory")

    first, other = rank_pool(2).run(no_room_worker, args=(str(tmp_path),))

    assert f"in {tmp_path}/file/backup: Not a directory" in first
    assert "rank 0 cannot restore its backup" in other
