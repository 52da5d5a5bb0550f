"""Backups in an object store: a server that speaks S3 here."""

from __future__ import annotations

import os
import signal
import socket

import pytest
from support.preempted import Sends, steps_per_epoch, train

import ring_keras as ring

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def endpoint():
    pytest.importorskip("s3fs", reason="needs the extra test-remote")
    server_module = pytest.importorskip(
        "moto.server", reason="needs the extra test-remote"
    )
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


def file_system(endpoint):
    """Found by the variables that the callback's own goes by."""
    import s3fs

    os.environ["AWS_ENDPOINT_URL"] = endpoint
    os.environ["AWS_ACCESS_KEY_ID"] = os.environ["AWS_SECRET_ACCESS_KEY"] = "testing"
    os.environ["AWS_DEFAULT_REGION"] = "us-east-1"
    files = s3fs.S3FileSystem()
    files.invalidate_cache()
    return files


def objects(endpoint, directory):
    paths = file_system(endpoint).find(directory)
    return sorted(path.rpartition("/")[2] for path in paths)


def pair(steps):
    return [f"step-{steps:012}{ending}" for ending in (".json", ".weights.h5")]


def remote_worker(endpoint, directory, damages):
    before = signal.getsignal(signal.SIGTERM)
    files = file_system(endpoint)
    if ring.rank() == 0:
        files.mkdir("backups")
    ring.barrier(name="made")
    whole, _ = train(f"{directory}/whole")
    signal.signal(signal.SIGTERM, before)
    saved = "s3://backups/of/one job"
    steps = steps_per_epoch(ring.size())
    with pytest.raises(SystemExit):
        train(saved, Sends(signal.SIGTERM, [1], step=steps + 2))
    signal.signal(signal.SIGTERM, before)
    left = objects(endpoint, saved)
    ring.barrier(name="looked")
    if damages and ring.rank() == 0:
        last = f"{saved}/{pair(steps + 2)[1]}"
        files.pipe_file(last, files.cat_file(last)[:-100])
    ring.barrier(name="damaged")
    resumed, history = train(saved)
    ring.barrier(name="removed")
    found = objects(endpoint, saved)
    ring.barrier(name="found")
    if ring.rank() == 0:
        files.rmdir("backups")
    ring.barrier(name="cleared")
    return resumed == whole, whole, left, found, len(history["loss"])


@pytest.mark.parametrize("damages", [False, True])
def test_a_run_resumes_from_an_object_store(rank_pool, tmp_path, endpoint, damages):
    arguments = (endpoint, str(tmp_path), damages)
    results = rank_pool(2).run(remote_worker, args=arguments, timeout_s=170)

    steps = steps_per_epoch(2)
    for equal, _, left, found, _ in results:
        assert equal
        assert left == [*pair(steps), *pair(steps + 2)]
        assert found == []
    assert len({weights for _, weights, *_ in results}) == 1


def missing_worker(endpoint):
    file_system(endpoint)
    with pytest.raises(ring.RingKerasError) as caught:
        train("s3://no-such-bucket/backup")
    return str(caught.value)


def test_what_an_object_store_refuses_is_an_error_of_all_ranks(rank_pool, endpoint):
    first, second = rank_pool(2).run(missing_worker, args=(endpoint,), timeout_s=170)

    assert first == second
    path = f"s3://no-such-bucket/backup/{pair(steps_per_epoch(2))[1]}"
    assert f"rank 0 cannot save: cannot write the backup {path}" in first


def unreachable_worker(endpoint):
    import s3fs

    # Nobody listens on the port of a socket that is bound alone.
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        os.environ["AWS_MAX_ATTEMPTS"] = "1"
        s3fs.S3FileSystem.clear_instance_cache()
        file_system(f"http://127.0.0.1:{bound.getsockname()[1]}")
        with pytest.raises(ring.RingKerasError) as caught:
            train("s3://backups/of/it")
    s3fs.S3FileSystem.clear_instance_cache()
    return str(caught.value)


def test_a_store_that_cannot_be_reached_is_not_taken_for_empty(rank_pool, endpoint):
    workers = rank_pool(2)
    first, second = workers.run(unreachable_worker, args=(endpoint,), timeout_s=170)

    assert "s3://backups/of/it: EndpointConnectionError" in first
    assert "rank 0 cannot restore its backup" in second


def elsewhere_worker(directory):
    with pytest.raises(ValueError, match="directory of this host"):
        ring.callbacks.Elastic(backup_dir="s3://backups/of/it")
    with pytest.raises(ValueError, match="fsspec"):
        ring.callbacks.Preemption("nothing-of-the-kind://backups")


def test_what_cannot_be_a_directory_is_refused(rank_pool, tmp_path):
    rank_pool(1).run(elsewhere_worker, args=(str(tmp_path),))
