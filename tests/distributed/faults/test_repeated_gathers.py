"""Allgathers that are no longer announced name who is missing, as others do.

Each rank has another number of rows in each use, like the slices of a sparse gradient.
"""

from __future__ import annotations

import os
import re
import signal

import numpy as np
import pytest
from support import run_ranks

import ring_keras as ring
from ring_keras import _native

SIZE, VICTIM = 5, 2


def gather(use: int) -> None:
    """The first two uses are announced; all must have the rows of all."""
    rows = [(rank + use) % 3 for rank in range(SIZE)]
    own = np.full((rows[ring.rank()], 2), ring.rank(), np.float32)
    expected = np.repeat(np.arange(SIZE, dtype=np.float32), rows)
    gathered = _native.allgather(own, "slices")
    np.testing.assert_array_equal(gathered, np.stack([expected] * 2, axis=1))


def one_stays_away() -> str:
    ring.init()
    for use in range(4):
        gather(use)
    with pytest.raises(ring.CollectiveTimeoutError) as info:
        if ring.rank() == VICTIM:
            ring.barrier(name="elsewhere")
        else:
            gather(4)
    return str(info.value)


def one_is_killed() -> None:
    ring.init()
    for use in range(4):
        gather(use)
    if ring.rank() == VICTIM:
        os.kill(os.getpid(), signal.SIGKILL)
    gather(4)


def one_has_other_columns() -> str:
    ring.init()
    for use in range(4):
        gather(use)
    columns = 3 if ring.rank() == VICTIM else 2
    with pytest.raises(ring.RankMismatchError) as info:
        _native.allgather(np.ones((1, columns), np.float32), "slices")
    for use in range(4):
        gather(use)
    return str(info.value)


def test_a_rank_that_does_not_come_is_named() -> None:
    env = {
        "RING_KERAS_TRANSPORT": "tcp",
        "RING_KERAS_STALL_TIMEOUT_S": "1",
        "RING_KERAS_COLLECTIVE_TIMEOUT_S": "4",
    }
    outcomes = run_ranks(one_stays_away, SIZE, env=env, check=False)

    for outcome in outcomes:
        assert outcome.ok, outcome.describe()
        assert "gave up after" in outcome.result, outcome.describe()
        if outcome.rank != VICTIM:
            told = rf"allgather 'slices': waited \S+ s for rank {VICTIM} of {SIZE}"
            assert re.search(told, outcome.stderr), outcome.stderr


def test_a_rank_that_is_killed_is_named() -> None:
    env = {"RING_KERAS_TRANSPORT": "tcp"}
    outcomes = run_ranks(one_is_killed, SIZE, env=env, check=False)

    assert outcomes[VICTIM].signal == signal.SIGKILL
    for outcome in outcomes:
        if outcome.rank != VICTIM:
            assert outcome.exception_type == "PeerLostError", outcome.describe()
            assert f"rank {VICTIM} (host " in outcome.message, outcome.describe()


def test_a_rank_that_disagrees_is_named_and_all_go_on() -> None:
    env = {"RING_KERAS_TRANSPORT": "tcp"}
    for said in run_ranks(one_has_other_columns, SIZE, env=env):
        assert f"rank 0 has [1,2], rank {VICTIM} has [1,3]" in said
