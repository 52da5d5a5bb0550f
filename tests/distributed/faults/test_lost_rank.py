"""A rank that dies, stops or gives up is named on all others, soon."""

from __future__ import annotations

import os
import signal
import threading

import numpy as np
import pytest
import tensorflow as tf
from support import RankOutcome, run_ranks

import ring_keras as ring
from ring_keras import _native
from ring_keras.ops.grouped_allreduce import allreduce_start, allreduce_wait


def assert_survivors_blame(outcomes: list[RankOutcome], victim: int) -> None:
    """All other ranks raised the same PeerLostError, about the victim."""
    pid = outcomes[victim].pid
    survivors = [outcome for outcome in outcomes if outcome.rank != victim]
    for outcome in survivors:
        assert outcome.exception_type == "PeerLostError", outcome.describe()
        assert f"rank {victim} (host " in outcome.message, outcome.describe()
        assert f"pid {pid})" in outcome.message, outcome.describe()
    assert len({outcome.message for outcome in survivors}) == 1


def killed_while_others_wait(victim: int) -> None:
    ring.init()
    ring.barrier()
    if ring.rank() == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    ring.allreduce(np.ones(10, np.float32), name="grads")


def killed_while_data_move(victim: int) -> None:
    ring.init()
    tensor = np.ones(3_000_000, np.float32)
    _native.allreduce(tensor, "sum", "big")
    if ring.rank() == victim:
        # Whenever that is, it is in one of the allreduces below.
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGKILL)).start()
    while True:
        _native.allreduce(tensor, "sum", "big")


@pytest.mark.parametrize(
    ("size", "victim", "transport"),
    [
        (2, 1, "auto"),
        (3, 0, "tcp"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [
                (2, 1, "tcp"),
                (3, 0, "auto"),
                (4, 2, "auto"),
                (4, 2, "tcp"),
            ]
        ),
    ],
)
def test_a_killed_rank_is_named(transport: str, size: int, victim: int) -> None:
    env = {"RING_KERAS_TRANSPORT": transport}
    outcomes = run_ranks(
        killed_while_others_wait, size, env=env, args=(victim,), check=False
    )
    assert outcomes[victim].signal == signal.SIGKILL
    assert_survivors_blame(outcomes, victim)


@pytest.mark.parametrize(
    ("size", "victim", "transport"),
    [
        (3, 1, "auto"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [(3, 1, "tcp"), (2, 0, "auto"), (2, 0, "tcp")]
        ),
    ],
)
def test_a_rank_killed_in_the_middle_of_an_allreduce_is_named(
    transport: str, size: int, victim: int
) -> None:
    env = {"RING_KERAS_TRANSPORT": transport}
    outcomes = run_ranks(
        killed_while_data_move, size, env=env, args=(victim,), check=False
    )
    assert outcomes[victim].signal == signal.SIGKILL
    assert_survivors_blame(outcomes, victim)


@pytest.mark.parametrize("pattern", ["HALVING", "TREES"])
def test_it_is_named_whatever_many_hosts_would_run(pattern: str) -> None:
    env = {
        "RING_KERAS_TRANSPORT": "tcp",
        "RING_KERAS_PARTS_MAX_BYTES": "0",
        f"RING_KERAS_{pattern}_MAX_BYTES": str(1 << 40),
    }
    outcomes = run_ranks(killed_while_data_move, 3, env=env, args=(1,), check=False)
    assert outcomes[1].signal == signal.SIGKILL
    assert_survivors_blame(outcomes, 1)


def stopped(victim: int) -> None:
    ring.init()
    pids = _native.allgather(np.array([os.getpid()]), "pids")
    if ring.rank() == victim:
        os.kill(os.getpid(), signal.SIGSTOP)
    try:
        ring.barrier(name="after the stop")
    finally:
        if ring.rank() == 0:
            # A stopped process takes no other signal.
            os.kill(int(pids[victim]), signal.SIGKILL)


def test_a_stopped_rank_is_named() -> None:
    outcomes = run_ranks(stopped, 3, args=(1,), check=False)
    assert_survivors_blame(outcomes, 1)
    assert "silent" in outcomes[0].message


def raises(victim: int) -> None:
    ring.init()
    if ring.rank() == victim:
        raise ValueError("bad batch 17")
    ring.allreduce(np.ones(10, np.float32), name="grads")


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_a_rank_that_raises_takes_no_one_with_it_in_silence(size: int) -> None:
    outcomes = run_ranks(raises, size, args=(1,), check=False)
    assert outcomes[1].exception_type == "ValueError"
    assert_survivors_blame(outcomes, 1)


def leaves() -> str:
    ring.init()
    total = ring.allreduce(np.ones(10, np.float32), "sum", name="both")
    assert float(total[0]) == ring.size()
    if ring.rank() == 1:
        ring.shutdown("has seen enough")
        return ""
    with pytest.raises(ring.PeerLostError) as info:
        ring.barrier(name="without rank 1")
    return str(info.value)


@pytest.mark.parametrize(
    "transport", ["auto", pytest.param("tcp", marks=pytest.mark.slow)]
)
def test_a_rank_that_left_is_named_with_its_reason(transport: str) -> None:
    message, _ = run_ranks(leaves, 2, env={"RING_KERAS_TRANSPORT": transport})
    assert "rank 1 (host " in message
    assert "has seen enough" in message
    assert "barrier 'without rank 1'" in message


def shuts_down_while_pending() -> str:
    ring.init()
    if ring.rank() == 2:
        # Never joins the collective, and outlasts the others.
        with pytest.raises(ring.PeerLostError):
            ring.barrier(name="something else")
        return ""
    pending = allreduce_start([tf.ones(3)], "sum", name="pending")
    if ring.rank() == 0:
        ring.shutdown()
    with pytest.raises(ring.RingKerasError) as info:
        allreduce_wait(pending)
    return str(info.value)


def test_shutdown_ends_what_is_pending() -> None:
    own, other, _ = run_ranks(shuts_down_while_pending, 3)
    assert "shutdown()" in own
    assert "'pending'" in own
    assert "rank 0 (host " in other


def never_initializes() -> None:
    if int(os.environ["RING_KERAS_RANK"]) == 1:
        raise SystemExit(3)
    ring.init()


def test_a_rank_that_ends_before_init_is_named() -> None:
    outcomes = run_ranks(never_initializes, 2, check=False)
    assert outcomes[0].exception_type == "PeerLostError", outcomes[0].describe()
    assert "rank 1" in outcomes[0].message


def too_late() -> None:
    if int(os.environ["RING_KERAS_RANK"]) == 1:
        signal.sigtimedwait([signal.SIGUSR1], 8)
        return
    ring.init()


@pytest.mark.slow
def test_a_rank_that_never_calls_init_is_named() -> None:
    env = {"RING_KERAS_INIT_TIMEOUT_S": "2"}
    outcomes = run_ranks(too_late, 2, env=env, check=False)
    assert outcomes[0].exception_type == "CollectiveTimeoutError"
    assert "rank 1 of 2" in outcomes[0].message
    assert "RING_KERAS_INIT_TIMEOUT_S" in outcomes[0].message
