"""Backups in an object store: servers that speak S3 and Google's protocol here."""

from __future__ import annotations

import os
import signal

import keras
import pytest
from support import checkpointed
from support.object_stores import KINDS
from support.preempted import Sends, steps_per_epoch, train

import ring_keras as ring
from ring_keras.callbacks.checkpoint_command import main

pytestmark = pytest.mark.slow


@pytest.fixture(params=sorted(KINDS))
def protocol(request):
    if missing := KINDS[request.param].missing():
        pytest.skip(
            f"needs the extra test-remote: there is no {' and no '.join(missing)}"
        )
    return request.param


@pytest.fixture
def server(protocol):
    with KINDS[protocol].served() as found:
        yield found


@pytest.fixture
def address(server):
    return server[0]


def pair(steps):
    return [f"step-{steps:012}{ending}" for ending in (".json", ".weights.h5")]


def remote_worker(protocol, address, directory, damages):
    before = signal.getsignal(signal.SIGTERM)
    files = KINDS[protocol].file_system(address)

    def objects():
        files.invalidate_cache()
        return sorted(path.rpartition("/")[2] for path in files.find(saved))

    if ring.rank() == 0:
        files.mkdir("backups")
    ring.barrier(name="made")
    whole, _ = train(f"{directory}/whole")
    signal.signal(signal.SIGTERM, before)
    saved = f"{protocol}://backups/of/one job"
    steps = steps_per_epoch(ring.size())
    with pytest.raises(SystemExit):
        train(saved, Sends(signal.SIGTERM, [1], step=steps + 2))
    signal.signal(signal.SIGTERM, before)
    left = objects()
    ring.barrier(name="looked")
    if damages and ring.rank() == 0:
        last = f"{saved}/{pair(steps + 2)[1]}"
        files.pipe_file(last, files.cat_file(last)[:-100])
    ring.barrier(name="damaged")
    resumed, history = train(saved)
    ring.barrier(name="removed")
    found = objects()
    ring.barrier(name="found")
    return resumed == whole, whole, left, found, len(history["loss"])


@pytest.mark.parametrize("damages", [False, True])
def test_a_run_resumes_from_an_object_store(
    rank_pool, tmp_path, protocol, address, damages
):
    arguments = (protocol, address, str(tmp_path), damages)
    results = rank_pool(2).run(remote_worker, args=arguments, timeout_s=170)

    steps = steps_per_epoch(2)
    for equal, _, left, found, _ in results:
        assert equal
        assert left == [*pair(steps), *pair(steps + 2)]
        assert found == []
    assert len({weights for _, weights, *_ in results}) == 1


def missing_worker(protocol, address):
    KINDS[protocol].file_system(address)
    with pytest.raises(ring.RingKerasError) as caught:
        train(f"{protocol}://no-such-bucket/backup")
    return str(caught.value)


def test_what_an_object_store_refuses_is_an_error_of_all_ranks(
    rank_pool, protocol, address
):
    workers = rank_pool(2)
    first, second = workers.run(missing_worker, args=(protocol, address), timeout_s=170)

    assert first == second
    path = f"{protocol}://no-such-bucket/backup/{pair(steps_per_epoch(2))[1]}"
    said = (
        f"rank 0 cannot save: cannot write the backup {path}: there is no such bucket"
    )
    assert said in first


def checkpoint_worker(protocol, address, directory):
    files = KINDS[protocol].file_system(address)
    if ring.rank() == 0:
        files.mkdir("checkpoints")
    ring.barrier(name="made")
    saved = f"{protocol}://checkpoints/of/one job"
    whole = checkpointed.train(f"{directory}/whole", every=3)
    with pytest.raises(checkpointed.StoppedError):
        checkpointed.train(saved, checkpointed.StopsAfter(8), every=3)
    resumed = checkpointed.train(saved, model=checkpointed.build(seed=9), every=3)
    ring.barrier(name="removed")
    files.invalidate_cache()
    left = [path.rpartition("/")[2] for path in files.find(saved)]
    into = f"{directory}/{ring.rank()}.keras"
    return resumed == whole, sorted(left), main([saved, "--into", into])


def test_checkpoints_of_an_object_store(rank_pool, tmp_path, protocol, address):
    arguments = (protocol, address, str(tmp_path))
    results = rank_pool(2).run(checkpoint_worker, args=arguments, timeout_s=170)

    for equal, left, code in results:
        assert (equal, code) == (True, 0)
        names = {name.partition(".")[0] for name in left}
        assert names == {f"run-0002-step-{step:012}" for step in (12, 15)} | {"run"}
        assert len(left) == 2 * 2 * 2 + 1
    command = [str(tmp_path / "whole"), "--into", str(tmp_path / "whole.keras")]
    assert main(command) == 0
    first, second, local = (
        keras.models.load_model(tmp_path / f"{name}.keras") for name in (0, 1, "whole")
    )
    assert checkpointed.in_file(first) == checkpointed.in_file(local)
    assert checkpointed.in_file(second) == checkpointed.in_file(local)


class Kills(keras.callbacks.Callback):
    """What the last epoch's backup would have gone to."""

    def __init__(self, pid):
        super().__init__()
        self._pid = pid if ring.rank() == 0 else None

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 2 and self._pid:
            os.kill(self._pid, signal.SIGKILL)


def dying_worker(protocol, address, pid):
    files = KINDS[protocol].file_system(address)
    if ring.rank() == 0:
        files.mkdir("backups")
    ring.barrier(name="made")
    saved = f"{protocol}://backups/of/it"
    with pytest.raises(ring.RingKerasError) as caught:
        train(saved, Kills(pid))
    with pytest.raises(ring.RingKerasError) as again:
        train(saved)
    return str(caught.value), str(again.value)


def test_a_store_that_dies_is_an_error_of_all_ranks(rank_pool, protocol, server):
    arguments = (protocol, *server)
    first, second = rank_pool(2).run(dying_worker, args=arguments, timeout_s=170)

    assert first[0] == second[0]
    assert "rank 0 cannot save: cannot write the backup" in first[0]
    assert KINDS[protocol].unreachable in first[0]
    # And it is not taken for empty.
    assert f"{protocol}://backups/of/it: {KINDS[protocol].unreachable}" in first[1]
    assert "rank 0 cannot restore its backup" in second[1]


def elsewhere_worker(directory):
    with pytest.raises(ValueError, match="directory of this host"):
        ring.callbacks.Elastic(backup_dir="s3://backups/of/it")
    with pytest.raises(ValueError, match="for a version"):
        ring.callbacks.Preemption("gs://backups/of/run #1")
    with pytest.raises(ValueError, match="fsspec"):
        ring.callbacks.Preemption("nothing-of-the-kind://backups")


def test_what_cannot_be_a_directory_is_refused(rank_pool, tmp_path):
    pytest.importorskip("gcsfs", reason="needs the extra test-remote")
    pytest.importorskip("s3fs", reason="needs the extra test-remote")
    rank_pool(1).run(elsewhere_worker, args=(str(tmp_path),))
