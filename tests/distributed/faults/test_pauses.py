"""Ranks that are stopped for a while, as machines are that move to another host."""

from __future__ import annotations

import os
import signal
import threading

import numpy as np
import pytest
from support import run_ranks
from support.engine_only import WITHOUT_TENSORFLOW, join
from support.processes import wait_until_stopped

from ring_keras import _native

PAUSE_S = 3.0


def paused(which: tuple[int, ...]) -> str:
    """Those ranks stop, and rank 0 has them go on after a while."""
    rank, _ = join()
    pids = _native.allgather(np.array([os.getpid()]), "pids")
    try:
        if rank in which:
            os.kill(os.getpid(), signal.SIGSTOP)
        elif rank == 0:
            for pid in pids[list(which)]:
                wait_until_stopped(int(pid))
                resume = (int(pid), signal.SIGCONT)
                threading.Timer(PAUSE_S, os.kill, resume).start()
        # What had come of one that is lost may be enough for the first.
        _native.barrier("after")
        _native.barrier("again")
    except RuntimeError as error:
        return str(error)
    return "went on"


def outcomes_of_a_pause(
    heartbeat_s: float, which: tuple[int, ...], transport: str = "auto"
) -> list[str]:
    env = WITHOUT_TENSORFLOW | {
        "RING_KERAS_HEARTBEAT_TIMEOUT_S": str(heartbeat_s),
        "RING_KERAS_TRANSPORT": transport,
    }
    return run_ranks(paused, 3, env=env, args=(which,))


@pytest.mark.parametrize(
    "transport", ["tcp", pytest.param("auto", marks=pytest.mark.slow)]
)
def test_a_job_survives_a_pause_that_is_shorter_than_the_timeout(transport) -> None:
    assert outcomes_of_a_pause(30, (1,), transport) == ["went on"] * 3


@pytest.mark.parametrize("which", [(1, 2), pytest.param((1,), marks=pytest.mark.slow)])
def test_all_tell_the_same_of_a_longer_one_also_who_was_stopped(which) -> None:
    messages = outcomes_of_a_pause(1, which)
    assert len(set(messages)) == 1, messages
    assert "PeerLostError: [RK201] rank " in messages[0]
    assert "silent for 1 s (RING_KERAS_HEARTBEAT_TIMEOUT_S)" in messages[0]
