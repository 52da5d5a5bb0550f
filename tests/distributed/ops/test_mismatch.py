"""Ranks that disagree: the same clear error everywhere, and the job goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf
from support import RankPool

import ring_keras as ring
from ring_keras.ops.grouped_allreduce import allreduce_start, allreduce_wait


def message_of(call: Callable[[], Any]) -> str:
    with pytest.raises(ring.RankMismatchError) as info:
        call()
    assert isinstance(info.value, tf.errors.FailedPreconditionError)
    # The job goes on.
    assert ring.allreduce(1.0, "sum") == ring.size()
    return str(info.value)


def messages() -> dict[str, str]:
    last = ring.rank() == ring.size() - 1
    shape = [3, 2] if last else [2, 3]
    graph = tf.function(lambda: ring.allreduce(tf.ones(shape), name="in graph"))
    return {
        "shape": message_of(lambda: ring.allreduce(tf.ones(shape), name="my shape")),
        "dtype": message_of(
            lambda: ring.allreduce(
                tf.ones([2], tf.float64 if last else tf.float32), name="my dtype"
            )
        ),
        "op": message_of(
            lambda: ring.allreduce(1.0, "max" if last else "sum", name="my op")
        ),
        "root": message_of(
            lambda: ring.broadcast(1.0, 1 if last else 0, name="my root")
        ),
        "kind": message_of(
            lambda: (
                ring.allgather([1.0], name="my kind")
                if last
                else ring.allreduce([1.0], name="my kind")
            )
        ),
        "count": message_of(
            lambda: ring.grouped_allreduce(
                [1.0] if last else [1.0, 2.0], name="my count"
            )
        ),
        "inner": message_of(
            lambda: ring.allgather(tf.ones([1, 3 if last else 2]), name="my inner")
        ),
        "scatter": message_of(
            lambda: ring.reducescatter(tf.ones(shape), name="my scatter")
        ),
        "alltoall": message_of(
            lambda: ring.alltoall(
                tf.ones([ring.size(), 3 if last else 2]), name="my alltoall"
            )
        ),
        "graph": message_of(lambda: _translated(graph)),
    }


def _translated(call: Callable[[], Any]) -> Any:
    with ring.errors.translated():
        return call()


def test_every_rank_gets_the_same_error(peers: RankPool) -> None:
    results = peers.run(messages, timeout_s=120)

    # Who differs from rank 0 is named: the last rank, and it alone.
    assert all(result == results[0] for result in results)
    found = results[0]
    for key, message in found.items():
        assert f"'{'in graph' if key == 'graph' else f'my {key}'}" in message, message
        assert f"rank {peers.size - 1}" in message, message
        assert "\n" not in message and "[[" not in message, message
    for key, one, other in (
        ("shape", "[2,3]", "[3,2]"),
        ("dtype", "float32", "float64"),
        ("op", "sum", "max"),
        ("root", "0", "1"),
        ("kind", "allreduce", "allgather"),
        ("inner", "2", "3"),
        ("scatter", "[2,3]", "[3,2]"),
        ("graph", "[2,3]", "[3,2]"),
    ):
        assert one in found[key] and other in found[key], found[key]


def check_cancelled_step() -> None:
    """A step that fails on one rank ends there, though peers have not joined."""
    index = tf.constant(7 if ring.rank() == 0 else 0)

    @tf.function
    def step(index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        total = ring.allreduce(tf.ones([3]), "sum", name="cancelled")
        with tf.device("CPU:0"):  # On a GPU there would be no error.
            return total, tf.gather(tf.constant([1.0]), index)

    if ring.rank() == 0:
        with pytest.raises(tf.errors.InvalidArgumentError, match="indices"):
            step(index)
    # The others have not even begun when rank 0 gets here.
    ring.barrier(name="after the failure")
    if ring.rank() != 0:
        assert step(index)[0][0] == ring.size()
    assert ring.allreduce(1.0, "sum") == ring.size()


def test_a_failing_step_does_not_wait_for_its_collectives(peers: RankPool) -> None:
    peers.run(check_cancelled_step)


def check_cancelled_thread() -> None:
    """The same where a thread of TensorFlow waits, and another finds the error."""
    rank = ring.rank()

    @tf.function
    def step(entry: tf.Tensor, index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        pending = allreduce_start([tf.ones([3])], "sum", name="thread")
        with tf.control_dependencies([pending.handle]):
            # Work that TensorFlow gives to a thread of its own.
            product = tf.fill([300, 300], entry)
            for _ in range(8):
                product = tf.linalg.matmul(product, product) / 300.0
            with tf.device("CPU:0"):  # On a GPU there would be no error.
                found = tf.gather(
                    entry[tf.newaxis], index + tf.cast(product[0, 0], "int32")
                )
        return allreduce_wait(pending, blocks=True)[0], found

    entry = tf.constant(1.0)
    operations = step.get_concrete_function(
        entry, tf.constant(7)
    ).graph.get_operations()
    (wait,) = [op for op in operations if op.type.endswith("AllreduceWait")]
    assert wait.get_attr("blocks")
    if rank == 0:
        with pytest.raises(tf.errors.InvalidArgumentError, match="indices"):
            step(entry, tf.constant(7))
    # The others have not even begun when rank 0 gets here.
    ring.barrier(name="after the failure of a thread")
    if rank != 0:
        assert step(entry, tf.constant(-1))[0][0] == ring.size()
    assert ring.allreduce(1.0, "sum") == ring.size()


def test_a_failing_step_does_not_wait_for_a_waiting_thread(peers: RankPool) -> None:
    peers.run(check_cancelled_thread)
