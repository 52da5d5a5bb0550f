"""What `Preemption` leaves on the disk, when it is damaged, full, slow, or killed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import threading
from pathlib import Path

import keras
import pytest
from support import training
from support.preempted import EPOCHS, Sends, names, steps_per_epoch, train
from support.processes import wait_until
from support.run_ranks import run_ranks

import ring_keras as ring

UNFINISHED = "unfinished.weights.h5"


def _path(directory, steps, ending=".weights.h5"):
    return Path(directory) / f"step-{steps:012}{ending}"


def _flip(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def _cut(directory, sends, **options):
    with pytest.raises(SystemExit) as caught:
        train(directory, sends, **options)
    assert caught.value.code == 128 + signal.SIGTERM


def _whole(directory):
    """The weights of a run that nothing has ended; the scheduler's handler stays."""
    before = signal.getsignal(signal.SIGTERM)
    whole, _ = train(directory)
    signal.signal(signal.SIGTERM, before)
    return whole


def damaged_worker(directory, damage):
    before = signal.getsignal(signal.SIGTERM)
    whole = _whole(f"{directory}/whole")
    saved = f"{directory}/parts"
    steps = steps_per_epoch(ring.size())
    _cut(saved, Sends(signal.SIGTERM, [0], step=steps + 4))
    if ring.rank() == 0:
        last = _path(saved, steps + 4)
        if damage == "record":
            _flip(_path(saved, steps + 4, ".json"), 10)
        elif damage == "truncated":
            os.truncate(last, last.stat().st_size // 2)
        else:
            _flip(last, last.stat().st_size // 2)
        if damage == "both":
            _flip(_path(saved, steps), -1)
    ring.barrier(name="damaged")
    # From the one before, if there is a whole one, and saves with fewer steps.
    cut = 3 if damage == "both" else steps + 1
    for count in (cut, cut + 1):
        signal.signal(signal.SIGTERM, before)
        _cut(saved, Sends(signal.SIGTERM, [1], step=count))
        ring.barrier(name="saved")
        assert _path(saved, count, ".json").exists(), names(saved)
        assert not _path(saved, steps + 4).exists()
        ring.barrier(name="looked")
    signal.signal(signal.SIGTERM, before)
    resumed, _ = train(saved)
    return resumed == whole, whole


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["both", "flipped", "truncated", "record"])
def test_damaged_backups_are_passed_over_by_all_ranks(rank_pool, tmp_path, damage):
    arguments = (str(tmp_path), damage)
    results = rank_pool(2).run(damaged_worker, args=arguments, timeout_s=170)

    assert all(equal for equal, _ in results)
    assert len({weights for _, weights in results}) == 1


class Disk(keras.callbacks.Callback):
    """Makes the disk hang from the second epoch on, until a step of the third.

    The file that is written first is a pipe: whoever opens it waits for a reader, and
    fails when it is to be brought to the disk.
    """

    def __init__(self, directory, steps):
        super().__init__()
        self._pipe = Path(directory) / UNFINISHED
        self._steps = steps
        self.steps_meanwhile = 0
        self._epoch = 0

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch
        if epoch == 1 and ring.rank() == 0:
            self._wait_for_record()
            os.mkfifo(self._pipe)

    def on_train_batch_end(self, batch, logs=None):
        if self._epoch < 2:
            return
        self.steps_meanwhile += 1
        if self.steps_meanwhile == self._steps:
            self.is_time()

    def is_time(self):
        if ring.rank() == 0:
            self._pipe.read_bytes()

    def _wait_for_record(self):
        """The backup of the first epoch is on the disk."""
        record = _path(self._pipe.parent, steps_per_epoch(ring.size()), ".json")
        done = threading.Event()
        for _ in range(3000):
            if record.exists():
                return
            done.wait(0.01)
        raise AssertionError(f"{record} is not there")


def hanging_worker(directory):
    before = signal.getsignal(signal.SIGTERM)
    whole = _whole(f"{directory}/whole")
    saved = f"{directory}/parts"
    disk = Disk(saved, steps=3)
    with pytest.raises(ring.RingKerasError) as caught:
        train(saved, disk)
    signal.signal(signal.SIGTERM, before)
    ring.barrier(name="failed")
    left = names(saved)
    ring.barrier(name="looked")
    resumed, _ = train(saved)
    return str(caught.value), disk.steps_meanwhile, left, resumed == whole


@pytest.mark.slow
def test_training_goes_on_while_a_disk_hangs_and_ends_when_it_fails(
    rank_pool, tmp_path
):
    results = rank_pool(2).run(hanging_worker, args=(str(tmp_path),), timeout_s=170)

    (text, *_), (other, *_) = results
    assert text == other
    steps = steps_per_epoch(2)
    path = _path(tmp_path / "parts", 2 * steps)
    assert (
        f"rank 0 cannot save: cannot write the backup {path}: Invalid argument" in text
    )
    assert "bytes are free there" in text
    first = _path(tmp_path, steps).name
    for _, meanwhile, left, equal in results:
        assert meanwhile >= 3
        assert left == [_path("", steps, ".json").name, first]
        assert equal


class Dies(Disk):
    """The process that saves is killed while it writes."""

    def is_time(self):
        if ring.rank() == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def killed_worker(directory):
    ring.init()
    train(directory, Dies(directory, steps=1))


def resumed_worker(directory):
    whole = _whole(f"{directory}/whole")
    resumed, history = train(f"{directory}/parts")
    return resumed == whole, len(history["loss"])


@pytest.mark.slow
def test_a_rank_that_is_killed_while_it_writes_leaves_the_last_backup(
    rank_pool, tmp_path
):
    saved = tmp_path / "parts"
    outcomes = run_ranks(killed_worker, 2, args=(str(saved),), check=False)

    assert outcomes[0].returncode == -signal.SIGKILL
    (saved / UNFINISHED).unlink()  # The pipe; what is left else is a file.
    (saved / UNFINISHED).write_bytes(b"half of it")
    results = rank_pool(2).run(resumed_worker, args=(str(tmp_path),))
    assert results == [(True, EPOCHS - 1)] * 2
    assert names(saved) == []


def exiting_worker(directory):
    ring.init()
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(2_000_000), keras.layers.Dense(1, "sigmoid")]
    model = keras.Sequential([keras.Input((6,)), *layers])
    training.compile_model(model, keras.optimizers.Adam(0.01))
    callbacks = [ring.callbacks.Preemption(directory), Fails()]
    training.fit(model, training.dataset(4), 4, callbacks=callbacks)


class Fails(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        raise KeyError("a callback failed")


@pytest.mark.slow
def test_a_process_that_ends_finishes_its_backup(tmp_path):
    (outcome,) = run_ranks(exiting_worker, 1, args=(str(tmp_path),), check=False)

    assert outcome.exception_type == "KeyError"
    assert names(tmp_path) == [
        _path("", 1, ending).name for ending in (".json", ".weights.h5")
    ]
    noted = json.loads(_path(tmp_path, 1, ".json").read_text())
    content = _path(tmp_path, 1).read_bytes()
    assert len(content) > 160e6
    assert noted["sha256"] == hashlib.sha256(content).hexdigest()


def full_worker(directory, ends_by_signal):
    before = signal.getsignal(signal.SIGTERM)
    steps = steps_per_epoch(ring.size())
    sends = Sends(signal.SIGTERM, [1], step=steps + 1)
    fills = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: _fill(directory) if epoch == 1 else None
    )
    model = training.compile_model(training.build(3), keras.optimizers.Adam(0.01))
    part = ring.data.shard(training.dataset(8 * steps))
    try:
        with pytest.raises((ring.RingKerasError, SystemExit)) as caught:
            training.fit(
                model,
                part,
                training.BATCH,
                epochs=EPOCHS,
                callbacks=[
                    ring.callbacks.Preemption(directory),
                    fills,
                    *([sends] if ends_by_signal else []),
                ],
            )
    finally:
        signal.signal(signal.SIGTERM, before)
    return str(caught.value)


def _fill(directory):
    """From now on as a disk without room: by /dev/full, or in fact."""
    if ring.rank() != 0:
        return
    usage = shutil.disk_usage(directory)
    if usage.total > 1 << 20:
        # The first epoch's backup is written meanwhile.
        first = _path(directory, steps_per_epoch(ring.size()), ".json")
        wait_until(first.exists, f"{first} is not there")
        (Path(directory) / UNFINISHED).symlink_to("/dev/full")
        return
    filler = Path(directory) / "filler"
    with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="space"):
        while file.write(bytes(1024)):
            pass


def _require_full(directory, results, free):
    text, other = results
    assert text == other
    path = _path(directory, 2 * steps_per_epoch(2))
    expected = f"cannot write the backup {path}: No space left on device"
    assert expected in text
    assert free in text
    assert f"{_path('', steps_per_epoch(2), '.json')}" in names(directory)
    assert not (directory / UNFINISHED).exists()


def test_a_full_disk_is_the_same_error_on_all_ranks(rank_pool, tmp_path):
    arguments = (str(tmp_path), False)
    results = rank_pool(2).run(full_worker, args=arguments)

    _require_full(tmp_path, results, "bytes are free there")


@pytest.mark.slow
def test_a_full_disk_at_the_signal_leaves_the_last_backup(rank_pool, tmp_path):
    results = rank_pool(2).run(full_worker, args=(str(tmp_path), True))

    assert results == ["143", "143"]
    assert names(tmp_path) == [
        _path("", steps_per_epoch(2), ending).name
        for ending in (".json", ".weights.h5")
    ]


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 256 KiB."""
    directory = tmp_path / "disk"
    directory.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(directory)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("needs root, to mount a small file system")
    yield directory
    subprocess.run(["umount", str(directory)], check=True)


@pytest.mark.slow
def test_a_disk_that_is_full_in_fact(rank_pool, small_disk):
    results = rank_pool(2).run(full_worker, args=(str(small_disk), False))

    _require_full(small_disk, results, " bytes are free there")
