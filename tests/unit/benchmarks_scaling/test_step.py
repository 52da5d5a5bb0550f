"""Buckets, backward and what remains exposed, worked out by hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from benchmarks.scaling.fit import Machine
from benchmarks.scaling.prediction import (
    Cluster,
    best_allreduce,
    predict_step,
    predict_tuned_step,
)
from benchmarks.scaling.step import Model, Transfer, Variable, simulate

MIB = 1 << 20
# Two layers of 4 MiB; the first has three quarters of the work.
MODEL = Model("two", (Variable(MIB, 3), Variable(MIB, 1)), forward_s=1, backward_s=4)
MACHINE = Machine(1e-5, 1e-6, 1e-4, 1.05, 1e-9, 1e-7, 1e-5, 1e-11, 2e-11)


def busy(seconds: float) -> Callable[[int], Transfer]:
    return lambda nbytes: Transfer(busy_s=seconds, waiting_s=0)


def test_free_communication_is_free() -> None:
    step = simulate(MODEL, 4 * MIB, busy(0))

    assert (step.step_s, step.exposed_s, step.buckets) == (5, 0, 2)


def test_the_last_bucket_is_exposed() -> None:
    # The second layer's gradient is there after 2 s, the first's after 5 s.
    step = simulate(MODEL, 4 * MIB, busy(0.5))

    assert (step.communication_s, step.exposed_s, step.step_s) == (1.0, 0.5, 5.5)


def test_buckets_take_turns_on_the_link() -> None:
    # From 2 to 6 s, and from 6 to 10 s.
    step = simulate(MODEL, 4 * MIB, busy(4))

    assert (step.exposed_s, step.step_s) == (5, 10)


def test_buckets_wait_side_by_side() -> None:
    step = simulate(MODEL, 4 * MIB, lambda nbytes: Transfer(busy_s=1, waiting_s=4))

    # From 2 to 3 s and up to 7; from 5 to 6 s and up to 10.
    assert (step.communication_s, step.exposed_s, step.step_s) == (2, 5, 10)


def test_large_buckets_hide_less() -> None:
    # Only the first bucket is small, whatever the size of the others.
    three = dataclasses.replace(MODEL, variables=(*MODEL.variables, Variable(MIB, 0)))

    def by_bytes(nbytes: int) -> Transfer:
        return Transfer(busy_s=nbytes / (4 * MIB), waiting_s=0)

    assert simulate(three, 4 * MIB, by_bytes).exposed_s == 1
    assert simulate(three, 1 << 40, by_bytes).exposed_s == 2


def test_gradients_bytes() -> None:
    assert MODEL.nbytes == 8 * MIB
    assert MODEL.alone_s == 5


def test_one_rank_has_no_communication() -> None:
    cluster = Cluster(MACHINE, 4, 1e9)

    assert best_allreduce(cluster, 1, MIB) == ("none", 0.0)
    assert predict_step(cluster, MODEL, 1, MIB).exposed_s == 0


def test_the_link_bounds_a_large_allreduce_from_below() -> None:
    cluster = Cluster(MACHINE, 4, 1e9)

    for ranks in (8, 64, 512):
        hosts = ranks // 4
        _, time_s = best_allreduce(cluster, ranks, 64 * MIB)
        assert time_s >= 2 * (hosts - 1) / hosts * 64 * MIB / 1e9


def test_more_ranks_or_a_slower_link_never_help() -> None:
    for per_host in (1, 4):
        fast, slow = Cluster(MACHINE, per_host, 1e9), Cluster(MACHINE, per_host, 1e8)
        steps = [predict_step(fast, MODEL, 8 << n, MIB).step_s for n in range(10)]
        assert steps == sorted(steps)
        for ranks in (8, 512):
            assert (
                best_allreduce(slow, ranks, MIB)[1]
                >= best_allreduce(fast, ranks, MIB)[1]
            )


def test_copies_to_and_from_an_accelerator_count() -> None:
    near = predict_step(Cluster(MACHINE, 4, 1e9), MODEL, 8, MIB)
    far = predict_step(Cluster(MACHINE, 4, 1e9, MIB), MODEL, 8, MIB)

    # The last bucket's 4 MiB go there and back, at 1 MiB/s.
    assert far.exposed_s - near.exposed_s == pytest.approx(8)


def test_the_tuned_size_is_no_worse_than_any() -> None:
    cluster = Cluster(MACHINE, 4, 1e7)

    size, step = predict_tuned_step(cluster, MODEL, 64)

    assert step == predict_step(cluster, MODEL, 64, size)
    for other in (1 << 20, 4 << 20, 64 << 20):
        assert step.step_s <= predict_step(cluster, MODEL, 64, other).step_s


def test_ranks_fill_their_hosts() -> None:
    with pytest.raises(ValueError, match="6 ranks do not fill hosts with 4"):
        best_allreduce(Cluster(MACHINE, 4, 1e9), 6, MIB)
