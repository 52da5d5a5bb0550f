"""Ranks that nobody tells where the store is find each other, and leave nothing."""

from __future__ import annotations

import os
import signal
import stat
import sys
from pathlib import Path

import pytest
from support.processes import wait_until, wait_until_dead


def test_they_are_one_job_and_leave_nothing(ranks):
    script = """
        join()
        print(_native.topology(), total("x"))
        _native.shutdown("once more")
        join()
        print(_native.generation(), total("y"))
        _native.shutdown("done")
    """

    for rank, printed in enumerate(ranks.run(script)):
        assert printed == f"({rank}, 2, {rank}, 2, 0, 1) [3.0]\n1 [3.0]\n"

    wait_until(lambda: not ranks.stores(), "the store has ended")
    assert ranks.cards() == []


def test_a_process_with_many_files_open(ranks):
    # `select` knows no descriptor above 1023.
    script = """
        import resource
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 3000), hard))
        files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
        join()
        print(total("x"))
        _native.shutdown("done")
    """

    assert ranks.run(script) == ["[3.0]\n"] * 2


@pytest.mark.slow
def test_init_is_what_joins(ranks):
    script = """
        import ring_keras as ring
        ring.init()
        print(ring.rank(), ring.size(), ring.local_rank())
    """

    assert ranks.run(script) == ["0 2 0\n", "1 2 1\n"]


def test_the_benchmark_joins_too(ranks):
    script = """
        from ring_keras.benchmark import job
        print(job.join(tensorflow=False))
        _native.shutdown("done")
    """

    assert ranks.run(script) == ["(0, 2)\n", "(1, 2)\n"]


def test_the_secret_is_where_only_its_user_can_read_it(ranks):
    # Rank 1 does not come, so the card stays.
    rank_0 = ranks.start(0, "join()")
    card = ranks.card()

    assert stat.S_IMODE(card.stat().st_mode) == 0o600
    assert stat.S_IMODE(card.parent.stat().st_mode) == 0o700
    token = card.read_text().partition('"token":"')[2][:64]
    assert len(bytes.fromhex(token)) == 32
    (store,) = ranks.stores()
    for pid in (store, rank_0.pid):
        for name in ("cmdline", "environ"):
            assert token.encode() not in Path(f"/proc/{pid}/{name}").read_bytes()


def test_a_killed_rank_0_is_named_though_it_had_started_the_store(ranks):
    script = """
        join()
        note(f"pid{rank}", os.getpid())
        if rank == 0:
            wait_for("pid1")
            os.kill(os.getpid(), signal.SIGKILL)
        total("x")
    """
    rank_0, rank_1 = ranks.start(0, script), ranks.start(1, script)

    _, errors = rank_1.communicate(timeout=120)
    assert "PeerLostError: " in errors
    assert f"rank 0 (host {os.uname().nodename}, pid {rank_0.pid})" in errors
    wait_until(lambda: not ranks.stores(), "the store has ended")


def test_a_killed_store_ends_the_job(ranks):
    script = """
        join()
        note(f"rank{rank}")
        if rank == 0:
            wait_for("never")
        total("x")
    """
    rank_0, rank_1 = ranks.start(0, script), ranks.start(1, script)
    ranks.noted("rank0")
    ranks.noted("rank1")
    (store,) = ranks.stores()

    os.kill(store, signal.SIGKILL)

    _, errors = rank_1.communicate(timeout=120)
    assert "PeerLostError: " in errors
    assert "store" in errors.rpartition("PeerLostError: ")[2]
    rank_0.kill()


@pytest.mark.slow  # It waits, on purpose.
def test_a_store_to_which_nobody_comes_ends(ranks):
    rank_0 = ranks.start(0, "join()")
    ranks.card()
    stores = ranks.stores()

    rank_0.kill()

    wait_until_dead(stores, timeout_s=120)
    assert ranks.cards() == []


def test_the_store_outlives_a_rank_0_that_has_ended_well(ranks):
    script = """
        join()
        total("x")
        _native.shutdown("done") if rank == 0 else wait_for("go")
        assert rank == 0 or _native.is_initialized()
    """
    rank_0, rank_1 = ranks.start(0, script), ranks.start(1, script)
    rank_0.communicate(timeout=120)
    # It is not the terminal's, nor moved by what asks a job to end.
    (store,) = ranks.stores()
    os.kill(store, signal.SIGTERM)
    assert os.getsid(store) != os.getsid(rank_1.pid)
    # As long as it takes the store to see that rank 0 is gone, and longer.
    assert rank_1.poll() is None and ranks.stores() == [store]

    (ranks.directory / "go").touch()
    _, errors = rank_1.communicate(timeout=120)
    assert rank_1.returncode == 0, errors
    wait_until_dead([store])


def test_two_jobs_of_the_same_ranks_one_after_the_other(ranks):
    file = ranks.directory / "script.py"
    first = ranks.start(0, "join(); print(total('x'))")
    again = ["sh", "-c", f"{sys.executable} {file} && {sys.executable} {file}"]
    second = ranks.start_raw(1, again)
    first.communicate(timeout=120)
    third = ranks.start_raw(0, [sys.executable, str(file)])

    for process, printed in ((second, "[3.0]\n[3.0]\n"), (third, "[3.0]\n")):
        output, errors = process.communicate(timeout=120)
        assert (process.returncode, output) == (0, printed), errors


def test_a_card_that_an_earlier_job_left_is_not_believed(ranks):
    # Both processes of the earlier job are killed before rank 1 came.
    rank_0 = ranks.start(0, "join()")
    card = ranks.card()
    (store,) = ranks.stores()
    os.kill(store, signal.SIGKILL)
    rank_0.kill()
    rank_0.communicate(timeout=120)
    assert card.exists()

    script = "join(); print(total('x'))"
    rank_1 = ranks.start(1, f"note('rank_1'); {script}")
    ranks.noted("rank_1")
    rank_0 = ranks.start(0, script)
    for process in (rank_0, rank_1):
        output, errors = process.communicate(timeout=120)
        assert (process.returncode, output) == (0, "[3.0]\n"), errors


@pytest.mark.slow
def test_who_waits_for_rank_0_in_vain_says_where(ranks):
    script = "store_options(Config.from_environment())"
    rank_1 = ranks.start(1, script, env={"RING_KERAS_INIT_TIMEOUT_S": "0.2"})

    _, errors = rank_1.communicate(timeout=120)
    assert (
        "CollectiveTimeoutError: [RK110] rank 1 waited 0.2 s for rank 0 of the 2"
        in errors
    )
    assert f"Open MPI started, which should say in {ranks.rendezvous_dir}" in errors


def test_a_store_that_cannot_listen_says_why(ranks):
    env = {"RING_KERAS_BIND_ADDRESS": "192.0.2.7"}
    rank_0 = ranks.start(0, "join()", env=env)

    _, errors = rank_0.communicate(timeout=120)
    assert "listening on 192.0.2.7) did not start" in errors
    assert "set RING_KERAS_BIND_ADDRESS" in errors
