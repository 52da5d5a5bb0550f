"""The card of a job, as its launcher keeps it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from ring_keras.launch.card import Card, CardAgent
from ring_keras.launch.tenure import Tenure


def tenure_of(path: Path, token: str) -> Tenure:
    card = Card([], "/", {}, str(path), token=token)
    return Tenure(card, path, taken_over=False)


def agent(name: str) -> CardAgent:
    return CardAgent(name, name, 1, "127.0.0.1:1")


@pytest.mark.parametrize("theirs", ["another job's", "a later launcher's"])
def test_the_card_of_another_one_stays_as_it_is(tmp_path: Path, theirs: str) -> None:
    path = tmp_path / "card"
    ours = tenure_of(path, "aa")
    ours.add(agent("a"))
    other = dataclasses.replace(ours.card, term=2)
    if theirs == "another job's":
        other = dataclasses.replace(ours.card, token="bb")
    other.write(path)

    ours.add(agent("b"))
    ours.end()

    assert Card.read(path) == other


def test_a_card_is_over_with_its_job(tmp_path: Path) -> None:
    path = tmp_path / "card"
    tenure = tenure_of(path, "aa")
    tenure.add(agent("a"))
    tenure.add(agent("b"))
    tenure.end()

    tenure.drop("b")  # It parts.

    assert not path.exists()
