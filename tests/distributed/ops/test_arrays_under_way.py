"""Collectives on NumPy arrays that go on beside Python."""

from __future__ import annotations

import gc

import ml_dtypes
import numpy as np
import pytest
from support.engine_only import WITHOUT_TENSORFLOW, join
from support.run_ranks import run_ranks

from ring_keras import _native


def worker() -> None:
    rank, size = join()
    for blocks in (False, True):
        half = np.full(3, rank, ml_dtypes.bfloat16)
        many = [np.full((2, n), rank, np.float32) for n in range(4)]
        started = [
            _native.start_allreduce(many, many, "sum", "many", blocks=blocks),
            _native.start_allreduce([half], [half], "max", "half", blocks=blocks),
        ]
        sent = np.full(2, rank)
        got = np.zeros(2, np.int64)
        started.append(_native.start_broadcast([sent], [got], 1, "sent", blocks=blocks))
        rows = np.full((rank + 1, 2), rank, np.int16)
        gathered = _native.start_allgather(rows[:, ::-1], "rows", blocks=blocks)
        part = _native.start_reduce_scatter(
            np.ones(2 * size), "sum", "part", blocks=blocks
        )
        counts = [1] * (size - 1) + [3]
        moved = _native.start_alltoall(
            np.arange(size + 2), counts, "moved", blocks=blocks
        )
        for one in reversed([*started, gathered, part, moved]):
            if blocks:
                assert one.is_done()
            one.wait()
            assert one.is_done()
        assert [one.tolist() for one in many] == [
            np.full((2, n), sum(range(size))).tolist() for n in range(4)
        ]
        assert half.tolist() == [size - 1] * 3
        assert (sent.tolist(), got.tolist()) == ([rank] * 2, [1, 1])
        expected = [[other] * 2 for other in range(size) for _ in range(other + 1)]
        assert gathered.take_output().tolist() == expected
        with pytest.raises(ValueError, match="no output to take"):
            gathered.take_output()
        with pytest.raises(ValueError, match="no output to take"):
            started[0].take_output()
        assert part.take_output().tolist() == [size, size]
        assert moved.received_splits() == [counts[rank]] * size
        own = [rank] if rank < size - 1 else [rank, rank + 1, rank + 2]
        assert moved.take_output().tolist() == own * size
        # What differs is an error of all, when it is waited for.
        wrong = [np.ones(rank + 1)]
        if blocks:
            with pytest.raises(RuntimeError, match="RK302"):
                _native.start_allreduce(wrong, wrong, "sum", "wrong", blocks=True)
        else:
            started = [_native.start_allreduce(wrong, wrong, "sum", "wrong")]
            with pytest.raises(RuntimeError, match="RK302"):
                started[0].wait()
        plan = [np.ones(1)]
        with pytest.raises(RuntimeError, match="RK311"):
            _native.start_allreduce(plan, plan, "sum", "plan", plan=rank + 1).wait()
        plan = _native.start_broadcast(plan, plan, 0, "plan2", plan=rank + 1)
        with pytest.raises(RuntimeError, match="RK311"):
            plan.wait()
    a, b = np.ones(2), np.ones(2, np.float32)
    for arrays, outs in (([a], []), ([a, b], [a, b]), ([np.ones((2, 2)).T], [a])):
        with pytest.raises(ValueError, match=r"expected an output|C-contiguous"):
            _native.start_allreduce(arrays, outs, "sum", "refused")
    # The engine may use the memory of one that is dropped: nobody else gets it.
    for number in range(20):
        dropped = np.full(50_000, rank, np.float32)
        _native.start_allreduce([dropped], [dropped], "sum", f"dropped{number}")
        del dropped
        gc.collect()
        others = [np.zeros(50_000, np.float32) for _ in range(3)]
        last = np.ones(1)
        _native.start_allreduce([last], [last], "sum", f"last{number}").wait()
        assert not any(one.any() for one in others)
    _native.barrier("end")


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_arrays_under_way(size: int) -> None:
    run_ranks(worker, size, env=WITHOUT_TENSORFLOW)
