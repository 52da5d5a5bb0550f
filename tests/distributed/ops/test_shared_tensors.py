"""Tensors that TensorFlow computes in memory that the ranks of a host share."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from support import run_ranks

import ring_keras as ring
from ring_keras import _native
from ring_keras.errors import CommunicationError
from ring_keras.ops.grouped_allreduce import grouped_allreduce

# Elements of float32: small ones and large ones, whole pages and not.
COUNTS = (3, 8192, 100_001, 7, 1 << 20, 9000)
# A few uses: a name's first go another way than the rest.
USES = 5


@tf.function  # type: ignore[untyped-decorator]
def sums_of(scale: tf.Tensor, counts: Sequence[int] = COUNTS) -> list[tf.Tensor]:
    """As a backward pass: tensors that nobody else uses, reduced together."""
    tensors = [
        tf.fill([count], scale * (tensor + 2)) for tensor, count in enumerate(counts)
    ]
    sums: list[tf.Tensor] = grouped_allreduce(tensors, ring.Sum, name="sums")
    return sums


def algorithms() -> set[str]:
    """What has been run for allreduces, by the engine's own record."""
    return {
        one["algorithm"]
        for one in _native.recent_collectives()
        if one["kind"] == "allreduce"
    }


def check_sums() -> None:
    for use in range(1, USES + 1):
        sums = sums_of(tf.constant(float(use * (ring.rank() + 1))))
        ranks = ring.size() * (ring.size() + 1) // 2
        for tensor, (total, count) in enumerate(zip(sums, COUNTS, strict=True)):
            expected = np.full(count, use * ranks * (tensor + 2), np.float32)
            np.testing.assert_array_equal(total.numpy(), expected)


def sums() -> set[str]:
    ring.init()
    check_sums()
    return algorithms()


def sums_after_tensorflow_has_started() -> set[str]:
    tf.zeros([1])
    return sums()


def sums_of_a_rank_that_has_started() -> set[str]:
    """TensorFlow has started on rank 1 alone."""
    if os.environ["RING_KERAS_RANK"] == "1":
        tf.zeros([1])
    return sums()


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_large_tensors_are_reduced_where_they_lie(size: int) -> None:
    assert run_ranks(sums, size) == [{"shared_tensors"}] * size


@pytest.mark.parametrize(
    ("worker", "env", "expected"),
    [
        pytest.param(
            sums,
            {"RING_KERAS_SHARE_TENSORS": "0"},
            ["shared_flat"] * 2,
            marks=pytest.mark.slow,
        ),
        pytest.param(
            sums_after_tensorflow_has_started,
            {},
            ["shared_flat"] * 2,
            marks=pytest.mark.slow,
        ),
        # Rank 0 would, and finds that rank 1 does not.
        (sums_of_a_rank_that_has_started, {}, ["shared_tensors", "shared_flat"]),
    ],
    ids=["switched off", "late", "late on one rank"],
)
def test_else_they_are_copied(
    worker: Callable[[], set[str]], env: dict[str, str], expected: list[str]
) -> None:
    assert run_ranks(worker, 2, env=env) == [{name} for name in expected]


def test_whole_runs_of_tests_copy_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESTS_ENVIRONMENT", "RING_KERAS_SHARE_TENSORS=0")
    assert run_ranks(sums, 2) == [{"shared_flat"}] * 2


def test_it_says_that_they_are_copied() -> None:
    env = {"RING_KERAS_LOG_LEVEL": "debug"}
    for outcome in run_ranks(
        sums_after_tensorflow_has_started, 2, env=env, check=False
    ):
        assert outcome.returned, outcome.traceback
        said = "gradients are copied between the ranks of this host"
        assert outcome.stderr.count(said) == 1, outcome.stderr


def weighted() -> list[float]:
    ring.init()

    @tf.function  # type: ignore[untyped-decorator]
    def average(scale: tf.Tensor) -> tf.Tensor:
        tensor = tf.fill([100_000], scale)
        return ring.allreduce(tensor, ring.Average, name="average")

    return [
        float(average(tf.constant(use * (ring.rank() + 1.0)))[-1]) for use in (1, 2)
    ]


def test_an_average() -> None:
    assert run_ranks(weighted, 2) == [[1.5, 3.0]] * 2


def generations() -> set[str]:
    """The memory is the process's, whatever job it is in."""
    ring.init()
    check_sums()
    ring.shutdown()
    ring.init()
    again = tf.function(
        lambda scale: ring.allreduce(tf.fill([100_000], scale), ring.Sum, name="again")
    )
    for use in range(1, USES + 1):
        total = again(tf.constant(float(use * (ring.rank() + 1))))
        np.testing.assert_array_equal(
            total.numpy(), np.full(100_000, use * 3, np.float32)
        )
    return algorithms()


def test_another_generation() -> None:
    assert run_ranks(generations, 2) == [{"shared_tensors"}] * 2


def a_rank_stops(directory: str) -> list[str]:
    """Rank 1 is stopped in the middle and comes back when rank 0 has given up."""
    ring.init()
    given_up = Path(directory) / "given_up"

    @tf.function  # type: ignore[untyped-decorator]
    def reduce(scale: tf.Tensor) -> tf.Tensor:
        tensor = tf.fill([8 << 20], scale)
        return ring.allreduce(tensor, ring.Sum, name="large")

    reduce(tf.constant(1.0))
    if ring.rank() == 1:
        # Its parent goes on with it.
        child = os.fork()
        if child == 0:
            while not given_up.exists():
                time.sleep(0.01)
            os.kill(os.getppid(), signal.SIGCONT)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGSTOP)
    outcome = []
    try:
        reduce(tf.constant(2.0))
    except (CommunicationError, tf.errors.OpError) as error:
        outcome.append(type(error).__name__)
    # What the caller computes next may lie where the other was about to write.
    mine = [tf.fill([8 << 20], 7.0) for _ in range(4)]
    if ring.rank() == 0:
        given_up.touch()
        deadline = time.monotonic() + 20
        while not (Path(directory) / "done").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
    else:
        (Path(directory) / "done").touch()
    assert all((tensor.numpy() == 7).all() for tensor in mine)
    return outcome


def test_a_rank_that_was_stopped_spoils_nothing(tmp_path: Path) -> None:
    env = {"RING_KERAS_COLLECTIVE_TIMEOUT_S": "2"}
    outcomes = run_ranks(a_rank_stops, 2, env=env, args=(str(tmp_path),))
    assert all(outcomes), outcomes
