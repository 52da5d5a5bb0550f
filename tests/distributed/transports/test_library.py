"""A transport that a library brings: tests/toy_transport."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
from support import run_ranks
from support.engine_only import WITHOUT_TENSORFLOW, join
from support.every_collective import every_collective, join_twice
from support.toy_transport import APART, by_toy, compiled_toy

from ring_keras import _native


@pytest.mark.parametrize("tells", ["1", None], ids=["told", "asked"])
@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_every_collective_goes_over_it(size: int, tells: str | None) -> None:
    # With a descriptor that tells of what has come, and without one.
    env = WITHOUT_TENSORFLOW | by_toy() | ({} if tells else {"TOY_TELLS_NOTHING": "1"})

    results = run_ranks(every_collective, size, env=env)

    for rank, reached in enumerate(results):
        assert reached == ["self" if r == rank else "toy 1" for r in range(size)]


def test_ranks_of_one_host_share_memory_beside_it() -> None:
    toy = WITHOUT_TENSORFLOW | by_toy()
    env = [toy | {"RING_KERAS_HOST_NAME": f"host{rank // 2}"} for rank in range(3)]

    results = run_ranks(every_collective, 3, env=env)

    assert results == [
        ["self", "shm", "toy 1"],
        ["shm", "self", "toy 1"],
        ["toy 1", "toy 1", "self"],
    ]


def test_a_job_may_begin_again() -> None:
    assert run_ranks(join_twice, 2, env=WITHOUT_TENSORFLOW | by_toy()) == [[2, 2]] * 2


def killed_while_data_move() -> None:
    rank, _ = join()
    tensor = np.ones(3_000_000, np.float32)
    _native.allreduce(tensor, "sum", "big")
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    _native.allreduce(tensor, "sum", "big")


def test_a_killed_rank_is_named() -> None:
    env = WITHOUT_TENSORFLOW | by_toy()

    survivor, lost, other = run_ranks(killed_while_data_move, 3, env=env, check=False)

    assert lost.signal == signal.SIGKILL
    for outcome in (survivor, other):
        assert "PeerLostError: [RK201] rank 1 (host host1" in outcome.message
    assert survivor.message == other.message


def failing_to_join(env: dict[str, str] | list[dict[str, str]]) -> list[str]:
    outcomes = run_ranks(every_collective, 2, env=env, check=False)
    assert not any(outcome.returned for outcome in outcomes)
    return [outcome.message for outcome in outcomes]


def test_a_library_that_is_none_is_refused() -> None:
    env = WITHOUT_TENSORFLOW | APART | {"RING_KERAS_TRANSPORT": "/nowhere/lib.so"}

    for message in failing_to_join(env):
        assert "/nowhere/lib.so" in message
    messages = failing_to_join(env | {"RING_KERAS_TRANSPORT": "/lib/../lib/libm.so.6"})
    assert any("[RK152] RING_KERAS_TRANSPORT=/lib" in message for message in messages)


def test_a_library_of_another_version_is_refused() -> None:
    other = compiled_toy("-DTOY_VERSION=2")
    env = WITHOUT_TENSORFLOW | APART | {"RING_KERAS_TRANSPORT": str(other)}

    messages = failing_to_join(env)

    assert any("takes version 1" in m and "is of version 2" in m for m in messages)


def test_ranks_that_differ_do_not_join() -> None:
    toy = WITHOUT_TENSORFLOW | by_toy()

    messages = failing_to_join([toy, WITHOUT_TENSORFLOW | APART])

    for message in messages:
        assert message.startswith(
            "RankMismatchError: [RK117] RING_KERAS_TRANSPORT must"
        )
        assert "it is toy 1 on rank 0 and tcp on rank 1" in message
