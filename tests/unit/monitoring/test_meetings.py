"""Scalars of the meetings of ranks that train apart."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest

from ring_keras.monitoring.meetings import Apart, Meeting, scalars_of_apart

# Changes of (3, 0) and (0, 4), of 1 and 3 examples: the average is (0.75, 3).
FIRST = Meeting(8.0, 1.0, 9.0, 9.5625, 2.0)
SECOND = dataclasses.replace(FIRST, amount=3.0, change_square=16.0)
# Equal changes of (0, 1) of both.
ALIKE = Meeting(4.0, 1.0, 1.0, 1.0, 1.0)


def scalars(*of_ranks: list[Meeting]) -> dict[str, float]:
    sent = [json.dumps([Apart(tuple(one)).to_json()]) for one in of_ranks]
    return scalars_of_apart([[Apart.from_json(*json.loads(text))] for text in sent])


def test_drift_is_the_spread_by_the_length_of_the_average() -> None:
    spread = (2.25**2 + 3**2) / 4 + 3 * (0.75**2 + 1**2) / 4

    found = scalars([FIRST], [SECOND])

    assert found == {
        "ring/meeting_bytes": 8.0,
        "ring/meeting_drift": pytest.approx(math.sqrt(spread / 9.5625)),
        "ring/meeting_update_norm": 2.0,
    }
    found = scalars([FIRST, ALIKE], [SECOND, ALIKE])
    assert found == {
        "ring/meeting_bytes": 6.0,
        "ring/meeting_drift": pytest.approx(math.sqrt(spread / 10.5625)),
        "ring/meeting_update_norm": 1.5,
    }


@pytest.mark.parametrize(
    ("changed", "drift"),
    [
        ({"change_square": 1 - 1e-8}, 0.0),
        ({"change_square": math.nan}, math.nan),
        ({"change_square": None}, None),
        ({"amount": 0.0}, None),
        ({"change_square": 0.0, "average_square": 0.0}, None),
    ],
)
def test_drift_where_there_is_little_to_say(changed, drift) -> None:
    meeting = dataclasses.replace(ALIKE, **changed)

    found = scalars([meeting], [meeting])

    expected = None if drift is None else pytest.approx(drift, nan_ok=True)
    assert found.get("ring/meeting_drift") == expected


def test_each_optimizer_has_its_own() -> None:
    apart = [Apart((ALIKE,), 3), Apart((), 7)]

    found = scalars_of_apart([apart, apart])

    assert found == {
        "ring/updates_to_meeting/optimizer_0": 3,
        "ring/meeting_bytes/optimizer_0": 4.0,
        "ring/meeting_update_norm/optimizer_0": 1.0,
        "ring/meeting_drift/optimizer_0": 0.0,
        "ring/updates_to_meeting/optimizer_1": 7,
    }
    assert scalars_of_apart([[], []]) == {}
