"""Plans of buckets, which are pure functions of the gradients."""

from __future__ import annotations

import pytest

from ring_keras.optimizers.buckets import GradientSpec, plan_buckets


def spec(count, dtype="float32", itemsize_bytes=4, name="v"):
    return GradientSpec(name, dtype, itemsize_bytes, (count,))


def indices(plan):
    return [bucket.indices for bucket in plan.buckets]


def test_buckets_fill_from_the_last_gradient():
    plan = plan_buckets([spec(10)] * 5, bucket_size_bytes=80)

    assert indices(plan) == [(4, 3), (2, 1), (0,)]
    assert [bucket.nbytes for bucket in plan.buckets] == [80, 80, 40]
    assert [bucket.fill for bucket in plan.buckets] == [1, 1, 0.5]


def test_the_first_bucket_is_small():
    plan = plan_buckets([spec(10)] * 5, bucket_size_bytes=160, first_bucket_bytes=40)

    assert indices(plan) == [(4,), (3, 2, 1, 0)]
    assert [bucket.fill for bucket in plan.buckets] == [1, 1]


def test_buckets_fill_in_the_order_that_is_given():
    specs = [spec(10)] * 5

    plan = plan_buckets(specs, 80, order=[1, 3, 0, 4, 2], groups=[(2, 4)])

    # The group's last gradient is the last of all.
    assert indices(plan) == [(1, 3), (0,), (4, 2)]


def test_a_large_gradient_has_its_own_bucket():
    plan = plan_buckets([spec(1), spec(1000), spec(1)], bucket_size_bytes=16)

    assert indices(plan) == [(2,), (1,), (0,)]
    assert [bucket.fill for bucket in plan.buckets] == [0.25, 1, 0.25]


def test_a_group_has_a_bucket_without_a_limit():
    plan = plan_buckets([spec(1), spec(1000), spec(1)], 16, groups=[(0, 1)])

    assert indices(plan) == [(2,), (1, 0)]
    assert [bucket.fill for bucket in plan.buckets] == [0.25, None]


def test_a_bucket_has_one_dtype_and_is_issued_when_its_last_gradient_is_ready():
    specs = [spec(1), spec(1, "float16", 2), spec(1), spec(1, "float16", 2)]

    plan = plan_buckets(specs, bucket_size_bytes=1024)

    assert indices(plan) == [(3, 1), (2, 0)]
    assert [bucket.dtype for bucket in plan.buckets] == ["float16", "float32"]


def test_sparse_and_absent_gradients_are_in_no_bucket():
    sparse = GradientSpec("embedding", "float32", 4, None)
    absent = GradientSpec("unused", None, 0, None)

    plan = plan_buckets([sparse, spec(3), absent], bucket_size_bytes=1024)

    assert indices(plan) == [(1,)]


def test_empty_gradients_and_empty_lists():
    assert indices(plan_buckets([], 1024)) == []
    assert indices(plan_buckets([spec(0), spec(0)], 1024)) == [(1, 0)]


@pytest.mark.parametrize("bucket_size_bytes", [1, 7, 64, 1000, 10**9])
def test_every_dense_gradient_is_in_one_bucket(bucket_size_bytes):
    specs = [
        spec(3 * n % 17, *[("float32", 4), ("float16", 2)][n % 2]) for n in range(40)
    ]

    plan = plan_buckets(specs, bucket_size_bytes)

    assert sorted(i for b in plan.buckets for i in b.indices) == list(range(40))
    for bucket in plan.buckets:
        assert {specs[i].dtype for i in bucket.indices} == {bucket.dtype}
        assert bucket.nbytes == sum(specs[i].nbytes for i in bucket.indices)
        assert len(bucket.indices) == 1 or bucket.nbytes <= bucket_size_bytes


def test_the_digest_follows_shapes_and_buckets_but_not_names():
    digest = plan_buckets([spec(3), spec(4)], 1024).digest()

    assert plan_buckets([spec(3, name="w"), spec(4)], 1024).digest() == digest
    assert plan_buckets([spec(4), spec(3)], 1024).digest() != digest
    assert plan_buckets([spec(3), spec(4)], 1).digest() != digest


def test_a_bucket_size_of_nothing_is_refused():
    with pytest.raises(ValueError, match="bucket_size_bytes=0"):
        plan_buckets([spec(1)], 0)
