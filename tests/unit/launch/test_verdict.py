"""Whose failure was the cause."""

import pytest

from ring_keras.launch.verdict import judge
from ring_keras.launch.workers import Worker


def ended(rank, returncode, ended_at=1.0, told_to_stop=False):
    return Worker(
        rank=rank,
        host_name="h",
        deliver=lambda _number: None,
        pid=100 + rank,
        started_at=0.0,
        ended_at=ended_at,
        returncode=returncode,
        told_to_stop=told_to_stop,
    )


def test_all_well():
    verdict = judge([ended(0, 0), ended(1, 0)], [(0, "left", False)], ())

    assert (verdict.exit_code, verdict.message) == (0, None)


def test_the_store_knows_better_than_the_order_of_exits():
    # Rank 1 raised and left; rank 0 noticed, and exited before it.
    workers = [ended(0, 1, ended_at=1.0), ended(1, 3, ended_at=1.2)]
    store = [(1, "rank 1 left: ValueError", False), (0, "rank 0 left", False)]

    verdict = judge(workers, store, ())

    assert verdict.exit_code == 3
    assert verdict.message == (
        "[RK801] rank 1 (host h, pid 101) exited with code 3 after 1.2 s; "
        "the other ranks have ended too"
    )


def test_who_was_told_of_anothers_error_is_not_the_cause():
    store = [
        (0, "rank 0 left: raised RuntimeError: [RK310] rank 1 cannot take part", False),
        (1, "rank 1 left: raised ValueError: no such file", False),
    ]

    verdict = judge([ended(0, 1), ended(1, 3)], store, ())

    assert verdict.exit_code == 3
    assert verdict.message.startswith("[RK801] rank 1 (host h, pid 101) exited")


def test_without_the_stores_word_the_first_exit_counts():
    verdict = judge([ended(0, 1, 2.0), ended(1, -9, 1.0)], [], ())

    assert verdict.exit_code == 137
    assert verdict.message.startswith(
        "[RK802] rank 1 (host h, pid 101) was killed by SIGKILL"
    )


@pytest.mark.parametrize("returncode", [0, -15, -9])
def test_a_rank_that_hung_is_the_cause_although_we_stopped_it(returncode):
    workers = [ended(0, 1), ended(1, returncode, told_to_stop=True)]
    silent = "rank 1 (host h, pid 101) has been silent for 5 s"

    verdict = judge(workers, [(1, silent, True)], {1})

    assert verdict.exit_code == (128 - returncode if returncode else 1)
    assert verdict.message == f"[RK805] {silent}; the other ranks have ended too"


def test_ranks_that_we_stopped_are_not_the_cause():
    workers = [ended(0, -15, 1.0, told_to_stop=True), ended(1, 3, 2.0)]

    verdict = judge(workers, [], ())

    assert verdict.exit_code == 3
    assert verdict.message.endswith("; the other ranks were stopped")


def test_a_single_rank_has_no_others():
    assert judge([ended(0, 3)], [], ()).message.endswith("code 3 after 1.0 s")


def test_a_host_that_is_gone_is_named():
    lost = ended(1, None)
    lost.lose("host h was lost: its agent was killed by SIGKILL")
    # They noticed, and exited before that host was given up.
    workers = [ended(0, 1, ended_at=0.5), lost]

    verdict = judge(workers, [(1, "rank 1 was lost", True)], ())

    assert verdict.exit_code == 1
    assert verdict.message == (
        "[RK804] host h was lost: its agent was killed by SIGKILL; "
        "the other ranks have ended too"
    )
