"""Collectives among some of the ranks."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from support import RankPool

import ring_keras as ring


def check_members() -> None:
    size, rank = ring.size(), ring.rank()
    everyone = ring.global_process_set
    assert everyone.ranks == list(range(size))
    assert (everyone.size(), everyone.rank(), everyone.included()) == (size, rank, True)

    first = ring.add_process_set([0])
    upper = ring.add_process_set(ring.ProcessSet(range(size - 1, 0, -1)))
    assert upper.ranks == list(range(1, size))
    assert upper.included() == (rank > 0)
    if rank > 0:
        position = rank - 1
        assert upper.rank() == position
        total = ring.allreduce(float(rank), "sum", process_set=upper)
        assert total == sum(range(1, size))
        gathered = ring.allgather([rank], process_set=upper)
        np.testing.assert_array_equal(gathered, range(1, size))
        # The root counts in the job, not in the process set.
        assert ring.broadcast(rank, size - 1, process_set=upper) == size - 1
        part = ring.reducescatter(tf.range(size - 1.0), "sum", process_set=upper)
        np.testing.assert_array_equal(part, [position * (size - 1.0)])
        swapped = ring.alltoall(tf.fill([size - 1], rank), process_set=upper)
        np.testing.assert_array_equal(swapped, range(1, size))
        objects = ring.allgather_object({"rank": rank}, process_set=upper)
        assert objects == [{"rank": other} for other in range(1, size)]
        variable = tf.Variable(float(rank))
        ring.broadcast_variables([variable], size - 1, process_set=upper)
        assert variable.numpy() == size - 1
        with tf.GradientTape() as tape:
            tape.watch(value := tf.constant(1.0))
            loss = ring.broadcast(value, 1, process_set=upper)
        assert tape.gradient(loss, value) == (size - 1 if rank == 1 else 0)
        ring.barrier(process_set=upper)
        with pytest.raises(ValueError, match="rank 0 is no member"):
            ring.broadcast(rank, 0, process_set=upper)
    else:
        with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
            ring.allreduce(1.0, process_set=upper)
        with pytest.raises(ValueError, match="rank 0 is no member"):
            upper.rank()
    if first.included():
        assert ring.allreduce(5.0, "sum", process_set=first) == 5.0

    # Sets and the whole job at once, under one name.
    assert ring.allreduce(1.0, "sum") == size
    assert ring.remove_process_set(upper)
    assert ring.remove_process_set(first)


def test_collectives_of_members(peers: RankPool) -> None:
    peers.run(check_members)


def check_bad_sets() -> None:
    size = ring.size()
    with pytest.raises(ValueError, match="different ranks"):
        ring.ProcessSet([0, 0])
    with pytest.raises(ValueError, match="different ranks"):
        ring.ProcessSet([])
    with pytest.raises(ValueError):
        ring.add_process_set([size])
    unknown = ring.ProcessSet([0])
    with pytest.raises(ValueError, match="add_process_set"):
        ring.allreduce(1.0, process_set=unknown)
    assert not ring.remove_process_set(unknown)
    assert not ring.remove_process_set(ring.global_process_set)

    added = ring.add_process_set([size - 1])
    with pytest.raises(ValueError):
        ring.add_process_set([size - 1])
    with pytest.raises(ValueError, match="already"):
        ring.add_process_set(added)
    assert ring.remove_process_set(added)
    # The ranks are free again.
    assert ring.remove_process_set(ring.add_process_set([size - 1]))


def test_sets_that_cannot_be(peers: RankPool) -> None:
    peers.run(check_bad_sets)
