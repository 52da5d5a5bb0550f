"""A `fit` whose ranks divide the optimizer's state goes on when some are killed."""

from __future__ import annotations

from typing import Any

import pytest
from support.elastic_fit import (
    ADAM,
    AVERAGED,
    DIES_AND_IS_REPLACED,
    HALF,
    REPLACED,
    fit,
)
from support.ringrun import Ringrun

# Five variables, so that each rank has some of the state.
_SHARDED: dict[str, Any] = {"shard": True, "totals": 4}


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        {},
        HALF,
        {**HALF, "optimizer": ADAM.format("gradient_accumulation_steps=3")},
        {**HALF, "optimizer": "keras.optimizers.Nadam(0.125)"},
        {"optimizer": "keras.optimizers.Adafactor(0.05)"},
        {"optimizer": ADAM.format(AVERAGED)},
        {"optimizer": "keras.optimizers.SGD(0.5, momentum=0.5, global_clipnorm=8.0)"},
        {"compile": {"jit_compile": True}},
        {"compile": {"steps_per_execution": 4}},
    ],
    ids=[
        "adam",
        "half",
        "half_accumulation",
        "half_nadam",
        "adafactor",
        "ema",
        "clipping",
        "jit_compile",
        "steps_per_execution",
    ],
)
def test_one_process_makes_the_same(ringrun: Ringrun, case: dict[str, Any]) -> None:
    case = {**_SHARDED, **case, **DIES_AND_IS_REPLACED}

    (first, second), _ = fit(ringrun, *REPLACED, ends=[1, 2], **case)

    assert 1 in first["sizes"]
    assert first["sizes"][-6:] == [2] * 6
    assert first["digest"] == second["digest"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "ends", "case"),
    [
        # One after the other, so that what has been divided anew is divided again.
        (4, [3], {"deaths": [[1, 1], [0, 2], [2, 3]]}),
        # At once, each with a neighbour that is left.
        (4, [1, 3], {"deaths": [[0, 2], [2, 2]]}),
        # Before any, or while it is committed, where nobody has passed the commit.
        (3, [0, 2], {"deaths": [[1, 0]]}),
        (3, [0, 2], {"in_commit": [[1, 2, "dies_before"]]}),
        # Process 2 alone has passed it, and the other goes on with what it has kept.
        (3, [1, 2], {"in_commit": [[0, 2, "dies_after"], [1, 2, "is_interrupted"]]}),
        # Nobody is lost, and one has to take the step of the others.
        (3, [0, 1, 2], {"in_commit": [[1, 3, "is_interrupted"]]}),
    ],
    ids=["in_turn", "at_once", "first", "before", "behind", "none"],
)
def test_lost_parts_are_with_the_next_ranks(
    ringrun: Ringrun, size: int, ends: list[int], case: dict[str, Any]
) -> None:
    # Some of the ranks have none of these variables.
    few = {**_SHARDED, "totals": 2} if size == 4 else _SHARDED

    found, _ = fit(ringrun, size=size, ends=ends, **few, **case)

    assert len({one["digest"] for one in found}) == 1
    assert found[0]["sizes"][-1] == len(ends)


@pytest.mark.slow
def test_a_state_of_one_rank_is_divided_among_those_that_come(
    ringrun: Ringrun,
) -> None:
    case = {**_SHARDED, "waits_in": [0, 1], "late": [1]}

    (first, second), _ = fit(ringrun, *REPLACED, size=1, ends=[0, 1], **case)

    assert set(first["sizes"]) == {1, 2}
    assert first["digest"] == second["digest"]


@pytest.mark.slow
def test_a_part_that_is_gone_ends_the_job(ringrun: Ringrun) -> None:
    # Process 2 has a copy of what process 1 has: the moments of the kernel.
    case = {**_SHARDED, "totals": 6, "deaths": [[1, 2], [2, 2]], "compared": False}

    _, said = fit(ringrun, size=4, ends=[], code=1, **case)

    for place in (0, 3):
        assert f"[{place}] ring_keras.errors.RingKerasError: [RK828]" in said
    assert "was kept by two ranks, and both are lost" in said


_WAITS_FOR_CHECKPOINT = (
    "keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: epoch and "
    "wait_until(lambda: list(CheckpointFiles(here / 'parts').complete()), 'it'))"
)


@pytest.mark.slow
def test_a_checkpoint_is_gone_on_with_where_a_part_is_gone(ringrun: Ringrun) -> None:
    case: dict[str, Any] = {
        **_SHARDED,
        "callbacks": [
            "ring.callbacks.Checkpoint(here / 'parts', every='epoch')",
            _WAITS_FOR_CHECKPOINT,
        ],
    }
    # An epoch of four ranks has three steps.
    _, said = fit(ringrun, size=4, ends=[], code=1, deaths=[[1, 4], [2, 4]], **case)
    assert "[RK828]" in said

    # One of the next ranks is lost, too.
    done = [[0, 0, 4]] * 3
    deaths = [[1, 5]]
    (first, _), _ = fit(ringrun, size=3, ends=[0, 2], done=done, deaths=deaths, **case)

    assert first["sizes"][:5] == [4, 4, 4, 3, 3]
    assert first["sizes"][-1] == 2
