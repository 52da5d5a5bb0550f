"""Which collectives belong to a step."""

from __future__ import annotations

from typing import Any

import pytest

from ring_keras.monitoring.meter import _within
from ring_keras.monitoring.stats import StepStats


def step(began_at: float, duration_s: float) -> StepStats:
    spans = ("input_s", "compute_s", "wait_s", "exposed_s", "overlap_s", "examples")
    return StepStats(
        step=3,
        process_set=0,
        began_at=began_at,
        duration_s=duration_s,
        bytes=0,
        collectives=1,
        waited_for_s=(),
        **dict.fromkeys(spans, 0.0),
    )


def record(submitted_at: float | None, done_at: float | None) -> dict[str, Any]:
    return {"submitted_at": submitted_at, "done_at": done_at}


@pytest.mark.parametrize(
    ("times", "belongs"),
    [
        ((10.5, 10.9), True),
        ((9.0, 10.1), True),
        ((10.9, 12.0), True),
        ((8.0, 9.9), False),
        ((11.1, 12.0), False),
        ((10.5, None), False),  # It goes on.
        ((None, 10.5), False),  # It was given up before this rank was in it.
    ],
)
def test_a_step_has_what_the_rank_was_in_meanwhile(
    times: tuple[float | None, float | None], belongs: bool
) -> None:
    one = record(*times)

    assert _within([one], step(10.0, 1.0)) == ([one] if belongs else [])
