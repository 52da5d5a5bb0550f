"""The size of buckets that holds where several have been named."""

import pytest

from ring_keras.job import bucket_size


@pytest.fixture(autouse=True)
def forgotten():
    yield
    bucket_size.set_tuned_bytes(None)
    bucket_size.train_on_gpu(False)


def test_a_gpu_gets_larger_buckets_unless_another_size_was_measured():
    assert bucket_size.current_bytes() == bucket_size.DEFAULT_BYTES
    bucket_size.train_on_gpu(True)
    assert bucket_size.current_bytes() == bucket_size.GPU_DEFAULT_BYTES
    bucket_size.set_tuned_bytes(5)
    assert bucket_size.current_bytes() == 5
