"""Allreduces that are bound to their arrays."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from support import RankPool, run_ranks

import ring_keras as ring
from ring_keras import _native

# As of a loop: a name's first two go another way than the rest.
TURNS = 6


def check_every_call() -> None:
    size, rank = ring.size(), ring.rank()
    values = np.zeros((3, 5), np.float32)
    sums = ring.prepare_allreduce(values, ring.Sum)
    averages = ring.prepare_allreduce(values)
    in_place = np.zeros(7, np.int64)
    largest = ring.prepare_allreduce(in_place, "max", out=in_place, name="largest")
    first = None
    for turn in range(TURNS):
        values[...] = turn * 10 + rank
        total = 10 * turn * size + size * (size - 1) // 2
        result = sums()
        assert first is None or result is first, "another array than before"
        first = result
        np.testing.assert_array_equal(result, np.full((3, 5), total, np.float32))
        np.testing.assert_allclose(averages(), np.full((3, 5), total / size))
        in_place[:] = rank - turn
        assert largest() is in_place
        assert (in_place == size - 1 - turn).all()


def test_every_call_reduces_what_the_array_holds(ranks: RankPool) -> None:
    ranks.run(check_every_call)


def check_overlaps() -> None:
    memory = np.zeros(10, np.float32)
    for array, out in ((memory[:-1], memory[1:]), (memory[1:], memory[:-1])):
        with pytest.raises(ValueError, match="no memory in common"):
            ring.prepare_allreduce(array, ring.Sum, out=out)
    memory[:] = 1.0
    halves = ring.prepare_allreduce(memory[:5], ring.Sum, out=memory[5:])
    itself = ring.prepare_allreduce(memory, ring.Sum, out=memory[:], name="itself")
    np.testing.assert_array_equal(halves(), np.full(5, ring.size()))
    np.testing.assert_array_equal(itself()[:5], np.full(5, ring.size()))


def test_a_result_does_not_overlap_what_is_read(ranks: RankPool) -> None:
    ranks.run(check_overlaps)


def check_shared() -> None:
    size, rank = ring.size(), ring.rank()
    values = ring.shared_empty((100, 1000), "float32")
    out = ring.shared_empty([100, 1000], np.float32)
    call = ring.prepare_allreduce(values, ring.Sum, out=out, name="shared")
    for turn in range(TURNS):
        values[...] = turn + rank
        assert call() is out
        assert (out == turn * size + size * (size - 1) // 2).all()


def test_shared_arrays(ranks: RankPool) -> None:
    ranks.run(check_shared)


def algorithms_of_shared() -> set[str]:
    ring.init()
    check_shared()
    return {one["algorithm"] for one in _native.recent_collectives()}


def test_shared_arrays_are_reduced_where_they_lie() -> None:
    for found in run_ranks(algorithms_of_shared, 2):
        assert "shared_buffers" in found


def check_process_set() -> None:
    if ring.size() == 1:
        return
    first = ring.add_process_set([0])
    if ring.rank() == 0:
        alone = ring.prepare_allreduce(np.ones(3), ring.Sum, process_set=first)
        assert alone().tolist() == [1, 1, 1]
    ring.remove_process_set(first)


def test_of_a_process_set(ranks: RankPool) -> None:
    ranks.run(check_process_set)


def generations() -> list[float]:
    ring.init()
    values = ring.shared_empty(4, np.float64)
    values[:] = ring.rank() + 1
    call = ring.prepare_allreduce(values, ring.Sum)
    totals = call().tolist()
    ring.shutdown()
    with pytest.raises(ring.NotInitializedError):
        call()
    ring.init()
    with pytest.raises(ring.NotInitializedError, match="RK103"):
        call()
    # The memory is there as long as the array.
    values += 10
    totals += ring.prepare_allreduce(values, ring.Sum)().tolist()
    return totals


def test_another_generation() -> None:
    assert run_ranks(generations, 2) == [[3.0] * 4 + [23.0] * 4] * 2


def differs() -> str:
    ring.init()
    values = np.zeros(2 + ring.rank(), np.float32)
    call = ring.prepare_allreduce(values, name="differs")
    with pytest.raises(ring.RankMismatchError) as info:
        call()
    return str(info.value)


def test_shapes_that_differ() -> None:
    one, other = run_ranks(differs, 2)
    assert one == other
    assert "[2]" in one and "[3]" in one


def loses_a_peer(directory: str) -> str:
    ring.init()
    values = np.zeros(2, np.float32)
    call = ring.prepare_allreduce(values)
    for _ in range(TURNS):
        call()
    if ring.rank() == 1:
        os._exit(9)
    with pytest.raises(ring.PeerLostError) as info:
        call()
    Path(directory, "told").touch()
    return str(info.value)


def test_a_lost_peer(tmp_path: Path) -> None:
    own, _ = run_ranks(loses_a_peer, 2, args=(str(tmp_path),), check=False)
    assert own.returned, own.traceback
    assert "rank 1" in own.result


def check_refused() -> None:
    good = np.zeros((4, 4), np.float32)
    read_only = np.zeros((4, 4), np.float32)
    read_only.flags.writeable = False
    with pytest.raises(ValueError, match="C-contiguous"):
        ring.prepare_allreduce(good.T[1:])
    for said, out in {
        "shape .16. and": np.zeros(16, np.float32),
        "float64": np.zeros((4, 4)),
        "read-only": read_only,
        "not C-contiguous": np.zeros((4, 8), np.float32)[:, :4],
    }.items():
        with pytest.raises(ValueError, match=rf"^out must be .*\[4,4\].*{said}"):
            ring.prepare_allreduce(good, out=out)
    for wrong in ({"array": [1.0]}, {"array": good, "out": [0.0]}):
        with pytest.raises(TypeError, match=r"must be a NumPy array.*list"):
            ring.prepare_allreduce(**wrong)
    # An equal dtype need not be the same object.
    ring.prepare_allreduce(np.zeros(2, "l"), ring.Sum, out=np.zeros(2, "q"))
    assert ring.shared_empty(np.int64(3), "float32").shape == (3,)
    with pytest.raises(TypeError, match=r"RK403.*complex128"):
        ring.prepare_allreduce(np.zeros(2, np.complex128))
    with pytest.raises(ValueError, match="RK402"):
        ring.prepare_allreduce(np.zeros(2, np.int32))
    with pytest.raises(ValueError, match=r"RK403.*adasum"):
        ring.prepare_allreduce(good, "adasum")
    with pytest.raises(TypeError, match="RK403"):
        ring.shared_empty(3, object)
    for shape in (-1, (-2, -3), (1 << 40, 1 << 40)):
        with pytest.raises(ValueError, match="expected a shape"):
            ring.shared_empty(shape, np.float32)
    with pytest.raises(ring.RingKerasError, match=r"no (room|memory)"):
        ring.shared_empty(1 << 46, np.float32)


def test_what_is_refused(ranks: RankPool) -> None:
    ranks.run(check_refused)
