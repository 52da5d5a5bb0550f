"""Whether a launcher that took a job over may begin the next generation."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ring_keras.launch.card import Card
from ring_keras.launch.elastic_members import ElasticMembers
from ring_keras.launch.elastic_options import ElasticOptions
from ring_keras.launch.last_generation import Found
from ring_keras.launch.tenure import Tenure
from ring_keras.launch.workers import Worker

OPTIONS = ElasticOptions(
    size=5,
    min_size=1,
    max_size=None,
    timeout_s=60.0,
    reset_limit=None,
    cooldown_s=(0.0, 0.0),
    discovery=None,
)


def nothing(*_given: Any) -> None:
    """Does it."""


def taken_over(card: Path, numbers: list[int], *, by_majority: bool) -> ElasticMembers:
    """Of a job of five ranks, after agents with these were reached."""
    tenure = Tenure(
        Card([], "/", {}, has_heirs=True),
        card,
        taken_over=True,
        by_majority=by_majority,
    )
    told = {"generation": 1, "members": [0, 1, 2, 3, 4], "late": False}
    found = [
        Found(
            Worker(number, "a", nothing),
            nothing,
            None,
            {**told, "rank": number, "changes": 0, "started": 5},
        )
        for number in numbers
    ]
    desk: Any = SimpleNamespace(
        options=SimpleNamespace(tenure=tenure),
        output=SimpleNamespace(say=nothing, hold=nothing),
        loop=SimpleNamespace(on_tick=nothing),
        watch=SimpleNamespace(note_ranks=nothing),
    )
    fleet: Any = SimpleNamespace(
        slots=5, found=lambda: found, begin=nothing, advance=nothing
    )
    members = ElasticMembers(OPTIONS, desk, "127.0.0.1", fleet)
    members.begin()
    return members


@pytest.mark.parametrize(
    ("by_majority", "living", "expected"),
    [
        (True, [0, 1, 2], True),
        (True, [0, 1], True),
        (True, [1, 2], False),
        (False, [1, 2], True),  # The user knows what is lost.
    ],
)
def test_ranks_that_were_not_reached_may_be_anothers(
    tmp_path: Path, by_majority: bool, living: list[int], expected: bool
) -> None:
    members = taken_over(tmp_path / "card", [0, 1, 2], by_majority=by_majority)

    left = [p for p in members._members if p.worker.rank in living]

    assert members._may_decide(left) is expected
