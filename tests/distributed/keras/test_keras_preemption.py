"""A `fit` that a signal ends goes on, when it is started again, where it was."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import keras
import pytest
from support import training
from support.run_ranks import run_ranks

import ring_keras as ring
from ring_keras import keras_internals as internals

COUNT = 62
EPOCHS = 3


class Sends(keras.callbacks.Callback):
    """A scheduler's signal to some ranks, after a step or in validation."""

    def __init__(self, number, ranks, step=None, in_validation_of=None):
        super().__init__()
        self._number = number if ring.rank() in ranks else 0
        self._step = step
        self._epoch = in_validation_of
        self._in_epoch = None
        self.validated = 0

    def on_epoch_begin(self, epoch, logs=None):
        self._in_epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if internals.steps_done(self.model.optimizer) == self._step and self._number:
            os.kill(os.getpid(), self._number)

    def on_test_batch_end(self, batch, logs=None):
        self.validated += 1
        if self._in_epoch == self._epoch and self._number:
            os.kill(os.getpid(), self._number)


def train(directory, sends=None, validates=False, **options):
    """The weights after it, as bytes; None in place of what a signal has ended."""
    keras.utils.set_random_seed(100 + ring.rank())
    model = training.compile_model(training.build(3), keras.optimizers.Adam(0.01))
    resume = ring.data.Resume()
    part = ring.data.shard(training.dataset(COUNT), seed=1, resume=resume)
    own = [ring.callbacks.Preemption(directory, **options), resume]
    own += [ring.callbacks.BroadcastGlobalVariables(), ring.callbacks.MetricAverage()]
    validation = training.dataset(8).batch(4) if validates else None
    history = training.fit(
        model,
        part,
        training.BATCH,
        epochs=EPOCHS,
        callbacks=[*own, *([sends] if sends else [])],
        validation_data=validation,
    )
    return training.as_bytes(model.get_weights()), history


def steps_per_epoch(size):
    return -(-(COUNT // size) // training.BATCH)


def names(directory):
    return sorted(path.name for path in Path(directory).iterdir())


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


def test_validation_ends_at_once(tmp_path):
    outcomes = run_ranks(validation_worker, 2, args=(str(tmp_path),), check=False)

    assert [outcome.exception_type for outcome in outcomes] == ["SystemExit"] * 2
    steps = steps_per_epoch(2)
    saved = [f"step-{steps * epoch:012}" for epoch in (1, 2)]
    expected = [f"{name}{end}" for name in saved for end in (".json", ".weights.h5")]
    assert names(tmp_path) == expected


def damaged_worker(directory):
    steps = steps_per_epoch(ring.size())
    with pytest.raises(SystemExit):
        train(directory, Sends(signal.SIGTERM, [0], step=steps + 2))
    last = Path(directory) / f"step-{steps + 2:012}.weights.h5"
    if ring.rank() == 0:
        content = bytearray(last.read_bytes())
        content[len(content) // 2] ^= 1
        last.write_bytes(content)
    ring.barrier(name="damaged")
    model = training.compile_model(training.build(3), keras.optimizers.Adam(0.01))
    taken = []
    begins = keras.callbacks.LambdaCallback(
        on_train_begin=lambda logs: taken.append(internals.steps_done(model.optimizer))
    )
    part = ring.data.shard(training.dataset(COUNT))
    callbacks = [ring.callbacks.Preemption(directory), begins]
    training.fit(model, part, training.BATCH, callbacks=callbacks)
    return taken, steps


@pytest.mark.slow
def test_a_damaged_backup_is_not_taken(rank_pool, tmp_path):
    (taken, steps), _ = rank_pool(2).run(damaged_worker, args=(str(tmp_path),))

    assert taken == [steps]


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
    with pytest.raises(SystemExit) as caught:
        train(f"{directory}/file/backup", sends)
    return caught.value.code


@pytest.mark.slow
def test_a_directory_that_cannot_be_is_an_error_of_the_log(rank_pool, tmp_path):
    (tmp_path / "file").write_text("no directory")

    codes = rank_pool(2).run(no_room_worker, args=(str(tmp_path),))

    assert codes == [143, 143]
