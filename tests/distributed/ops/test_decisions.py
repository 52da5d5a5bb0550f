"""Decisions that all ranks take alike."""

from __future__ import annotations

import pytest
import tensorflow as tf
from support import RankPool

import ring_keras as ring


def check_decisions() -> None:
    size, rank = ring.size(), ring.rank()
    last = rank == size - 1
    assert ring.any(last) is True
    assert ring.any(False) is False
    assert ring.all(not last) is (size == 0)
    assert ring.all(tf.constant(True)) is True

    @tf.function
    def in_graph(flag: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return ring.any(flag), ring.all(flag)

    assert [bool(one) for one in in_graph(tf.constant(last))] == [True, size == 1]
    for no_decision in (1, "yes", [True, False], None):
        with pytest.raises((TypeError, ValueError)):
            ring.any(no_decision)


def test_all_ranks_decide_alike(ranks: RankPool) -> None:
    ranks.run(check_decisions)


def check_agreement() -> None:
    size, rank = ring.size(), ring.rank()
    classes = ["cat", "dog"]
    assert ring.agree_on(classes, name="classes") is classes
    ours = [*classes, "owl"] if rank == size - 1 else classes
    if size > 1:
        with pytest.raises(ring.RankMismatchError) as caught:
            ring.agree_on(ours, name="classes")
        assert "'classes'" in str(caught.value)
        assert f"ranks {[*range(size - 1)]} have ['cat', 'dog']" in str(caught.value)
        assert f"ranks [{size - 1}] have ['cat', 'dog', 'owl']" in str(caught.value)
        # What is shown in short may look alike.
        text = "x" * 100 + str(rank)
        with pytest.raises(ring.RankMismatchError, match="xxx"):
            ring.agree_on(text)
    with pytest.raises((TypeError, ring.RingKerasError)):
        ring.agree_on(object() if rank == 0 else 1)
    assert ring.agree_on(None) is None


def test_values_that_differ_are_an_error_on_all(ranks: RankPool) -> None:
    ranks.run(check_agreement)


def check_process_set() -> None:
    pair = ring.add_process_set([0, 2])
    if ring.rank() != 1:
        assert ring.any(ring.rank() == 2, process_set=pair)
        with pytest.raises(ring.RankMismatchError, match=r"ranks \[2\] have 2"):
            ring.agree_on(ring.rank(), process_set=pair)
    ring.remove_process_set(pair)


def test_of_a_process_set(rank_pool) -> None:
    rank_pool(3).run(check_process_set)
