"""What belongs to a membership, and ends with it."""

import pytest
import tensorflow as tf

import ring_keras as ring
from ring_keras.job.job import PerJob, current_job
from ring_keras.ops.data_order import living_orders
from ring_keras.ops.join import agreed_without_all
from ring_keras.optimizers import buckets


@pytest.fixture
def job():
    ring.init()
    yield current_job()
    ring.shutdown()


def test_a_gpu_gets_larger_buckets_unless_another_size_was_measured(job):
    assert buckets.current_bytes() == buckets.DEFAULT_BYTES
    job.on_gpu = True
    assert buckets.current_bytes() == buckets.GPU_DEFAULT_BYTES
    job.tuned_bucket_bytes = 5
    assert buckets.current_bytes() == 5


def test_the_environment_of_init_decides_the_size_of_buckets(monkeypatch):
    for nbytes in 1000, 2000:
        monkeypatch.setenv("RING_KERAS_BUCKET_SIZE_BYTES", str(nbytes))
        ring.init()
        monkeypatch.delenv("RING_KERAS_BUCKET_SIZE_BYTES")
        assert buckets.current_bytes() == nbytes
        ring.shutdown()


def test_nothing_outlives_a_job(job):
    job.tuned_bucket_bytes = 5
    job.has_failed_alone = True
    data = ring.data.shard(tf.data.Dataset.range(4), seed=1)
    assert living_orders(ring.global_process_set)
    agreed_without_all.of(job)[0][b"digest"] = 1
    ring.shutdown()
    with pytest.raises(ring.NotInitializedError, match=r"ring_keras\.init"):
        current_job()
    ring.init()
    assert current_job() is not job
    assert current_job().generation == job.generation + 1
    assert current_job().communicator_base != job.communicator_base
    assert current_job().tuned_bucket_bytes is None
    assert not current_job().has_failed_alone
    assert not living_orders(ring.global_process_set)
    assert list(data)
    assert not agreed_without_all.of(current_job())[0]


def test_what_a_part_keeps_of_a_job_ends_with_it(job):
    ended = []
    notes = PerJob(list, ended.append)
    notes.of(job).append("first")
    assert notes.of(job) == ["first"]
    ring.shutdown()
    assert ended == [["first"]]
    ring.init()
    assert notes.of(current_job()) == []
    notes.put(current_job(), ["second"])
    ring.shutdown()
    assert ended == [["first"], ["second"]]
