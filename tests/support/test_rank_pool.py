"""Pools keep their ranks while all goes well, and only then."""

from __future__ import annotations

import os
import sys
import threading

import pytest

import ring_keras as ring
from support.engine_only import WITHOUT_TENSORFLOW
from support.processes import wait_until_dead
from support.rank_pool import RankPool, RankPools


def whoami() -> tuple[int, int, int, bool]:
    return ring.rank(), ring.size(), os.getpid(), "keras" in sys.modules


def fail(how: str) -> None:
    if ring.rank() == 1:
        if how == "raise":
            raise LookupError("lost my way")
        os._exit(3)
    ring.allreduce([1.0], name="rank 1 never comes")


def print_and_read() -> str:
    print("only this")
    return sys.stdin.read()


@pytest.fixture
def pool():
    pool = RankPool(2)
    yield pool
    pool.kill()


def test_ranks_are_warm_and_stay(pool):
    first = pool.run(whoami)
    second = pool.run(whoami)

    assert first == second
    assert [(rank, size) for rank, size, _, _ in first] == [(0, 2), (1, 2)]
    assert all(has_keras for _, _, _, has_keras in first)

    pool.close()  # Would raise if a rank did not end by itself.
    wait_until_dead([pid for _, _, pid, _ in first])


def test_a_worker_gets_no_input_and_eats_no_task(pool):
    assert pool.run(print_and_read) == ["", ""]
    assert pool.run(print_and_read) == ["", ""]


@pytest.mark.parametrize("how", ["raise", "exit"])
def test_a_failure_is_told_and_brings_new_ranks(pool, how):
    before = [pid for _, _, pid, _ in pool.run(whoami)]

    with pytest.raises(AssertionError) as caught:
        pool.run(fail, args=[how], timeout_s=30)

    text = str(caught.value)
    assert "lost my way" in text if how == "raise" else "exited with code 3" in text
    wait_until_dead(before)
    after = [pid for _, _, pid, _ in pool.run(whoami)]
    assert not set(before) & set(after)


def test_the_pool_unused_for_longest_makes_room():
    pools = RankPools(max_processes=2)
    try:
        one, other = pools(1), pools(1, env={"TESTS_X": "1"})
        assert pools(1) is one
        first = [one.run(whoami), other.run(whoami), one.run(whoami)]
        assert first[0] == first[2]
        third = pools(1, env={"TESTS_X": "2"})
        third.run(whoami)
        assert (one.alive, other.alive, third.alive) == (True, False, True)
    finally:
        errors = pools.close()
    assert errors == []
    assert not (one.alive or other.alive or third.alive)


def leave_a_thread_behind() -> None:
    threading.Thread(target=threading.Event().wait).start()


def test_a_pool_that_does_not_end_names_the_tests_that_it_ran(monkeypatch):
    monkeypatch.setattr("support.rank_pool.END_TIMEOUT_S", 2)
    pools = RankPools()
    pools(1, env=WITHOUT_TENSORFLOW).run(leave_a_thread_behind)

    (error,) = pools.close()

    assert "did not exit cleanly" in error
    assert "test_a_pool_that_does_not_end_names_the_tests_that_it_ran" in error
    assert "threading.py" in error  # Where it stood.
