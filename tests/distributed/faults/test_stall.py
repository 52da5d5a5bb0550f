"""A rank that never joins a collective is named, first by a warning."""

from __future__ import annotations

import pytest
from support import run_ranks

import ring_keras as ring

ENV = {"RING_KERAS_STALL_TIMEOUT_S": "0.5", "RING_KERAS_COLLECTIVE_TIMEOUT_S": "2"}


def branches_by_rank() -> str:
    ring.init()
    with pytest.raises(ring.CollectiveTimeoutError) as info:
        if ring.rank() == 1:
            ring.barrier(name="only rank 1")
        else:
            ring.allreduce(1.0, name="all but rank 1")
    return str(info.value)


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_the_stall_watch_names_who_is_missing(transport: str) -> None:
    env = ENV | {"RING_KERAS_TRANSPORT": transport}
    outcomes = run_ranks(branches_by_rank, 3, env=env, check=False)
    assert all(outcome.ok for outcome in outcomes), [
        outcome.describe() for outcome in outcomes
    ]
    # The deadline that passed first is told to all; two may pass together.
    for outcome in outcomes:
        assert "gave up after" in outcome.result, outcome.describe()
        # Which is no matter of time.
        assert "They wait for each other" in outcome.result, outcome.describe()
        assert "RING_KERAS_COLLECTIVE_TIMEOUT_S" not in outcome.result
    warning = outcomes[0].stderr
    assert "allreduce 'all but rank 1': waited" in warning
    assert "ranks {1} of 3" in warning
    # And the warning tells where the missing rank is instead.
    assert "Rank 1 waits in barrier 'only rank 1'" in warning
