"""A rank that never joins a collective is named, first by a warning."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support import run_ranks
from support.processes import wait_until

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


@pytest.mark.parametrize(
    "transport", ["auto", pytest.param("tcp", marks=pytest.mark.slow)]
)
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
    assert "rank 1 of 3." in warning
    # And the warning tells where the missing rank is instead.
    assert "Rank 1 waits in barrier 'only rank 1'" in warning


def stays_away(directory: str) -> None:
    ring.init()
    given_up = Path(directory, "given up")
    if ring.rank() == 1:
        wait_until(given_up.exists, "rank 0 has given up")
        return
    with pytest.raises(ring.CollectiveTimeoutError):
        ring.allreduce(1.0, name="x")
    given_up.touch()


@pytest.mark.parametrize("traces", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_stall_is_told_less_and_less_often(tmp_path: Path, traces: bool) -> None:
    env = {"RING_KERAS_STALL_TIMEOUT_S": "0.2", "RING_KERAS_COLLECTIVE_TIMEOUT_S": "4"}
    if traces:
        env["RING_KERAS_TRACE_DIR"] = str(tmp_path)
    outcomes = run_ranks(stays_away, 2, env=env, args=(str(tmp_path),), check=False)

    first, second = outcomes
    assert first.ok and second.ok, (first.describe(), second.describe())
    warnings = [line for line in first.stderr.splitlines() if "[RK207]" in line]
    # After 0.2, 0.4, 0.8, 1.6 and 3.2 s, unless this machine was too slow.
    assert 1 <= len(warnings) <= 5, warnings
    for warning in warnings:
        assert "s for rank 1 of 2. It may be reading data, saving, or in" in warning
        assert (f"`ring analyze {tmp_path}`" in warning) == traces
        assert ("With RING_KERAS_TRACE_DIR=DIR" in warning) == (not traces)
    # And the rank that is waited for says where its program stands.
    told = [line for line in second.stderr.splitlines() if "[RK207]" in line]
    assert 1 <= len(told) <= 5, told
    for line in told:
        assert re.search(
            r"rank 0 has waited \S+ s for this rank in allreduce 'x'\. "
            r"It stands in \w+\.py:\d+ \(\w+\)\.",
            line,
        ), line
