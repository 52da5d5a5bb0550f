"""When an agent that hears no launcher starts another one."""

from __future__ import annotations

import pytest

from ring_keras.launch.succession import turn_s


@pytest.mark.parametrize(
    ("agents", "outage_s", "expected"),
    [
        (1, 35.0, 3.0),
        (8, 35.0, 3.0),
        (12, 35.0, 25 / 12),
        (100, 35.0, 0.25),
        (3, 25.0, 3.0),
        (2, 6.0, 1.5),
    ],
)
def test_all_have_a_turn(agents: int, outage_s: float, expected: float) -> None:
    assert turn_s(agents, outage_s) == pytest.approx(expected)
    assert agents * turn_s(agents, outage_s) < outage_s
