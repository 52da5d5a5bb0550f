"""init, shutdown, and what there is before and after."""

from __future__ import annotations

import os

import pytest
from support import run_ranks

import ring_keras as ring


def check_before_init() -> None:
    assert not ring.is_initialized()
    for function in (
        ring.rank,
        ring.size,
        ring.local_rank,
        ring.local_size,
        ring.cross_rank,
        ring.cross_size,
    ):
        name = function.__name__
        with pytest.raises(ring.NotInitializedError, match=rf"{name}\(\).*init\(\)"):
            function()
    for call in (
        lambda: ring.allreduce(1.0),
        lambda: ring.barrier(),
        lambda: ring.allgather_object(1),
        lambda: ring.add_process_set([0]),
    ):
        with pytest.raises(ring.NotInitializedError):
            call()
    ring.shutdown()


def check_after_init() -> None:
    ring.init()
    ring.init()
    assert ring.is_initialized()
    assert (ring.rank(), ring.size()) == (0, 1)
    assert (ring.local_rank(), ring.local_size()) == (0, 1)
    assert (ring.cross_rank(), ring.cross_size()) == (0, 1)
    assert ring.allreduce(2.0) == 2.0


def check_one_rank() -> None:
    for variable in list(os.environ):
        if variable.startswith("RING_KERAS_"):
            del os.environ[variable]
    check_before_init()
    check_after_init()
    ring.shutdown()
    ring.shutdown()
    check_before_init()

    os.environ["RING_KERAS_TCP_STREAMS"] = "many"
    with pytest.raises(ValueError, match="RING_KERAS_TCP_STREAMS='many'"):
        ring.init()


def test_one_rank_without_a_launcher() -> None:
    run_ranks(check_one_rank, size=1)
