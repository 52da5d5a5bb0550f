"""Where processes of an elastic job are started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ring_keras.launch import fleet as fleet_module
from ring_keras.launch.agent_crew import AgentCrew
from ring_keras.launch.agent_line import AgentLine
from ring_keras.launch.card import Card
from ring_keras.launch.crew import Crew
from ring_keras.launch.desk import LaunchOptions
from ring_keras.launch.elastic_options import ElasticOptions
from ring_keras.launch.fleet import Fleet
from ring_keras.launch.hosts import Host
from ring_keras.launch.tenure import Tenure
from ring_keras.launch.watch_options import WatchOptions

OPTIONS = ElasticOptions(
    size=4,
    min_size=1,
    max_size=None,
    timeout_s=1.0,
    reset_limit=None,
    cooldown_s=(0.0, 0.0),
    discovery=None,
)


class Growth:
    """Notes which hosts are connected to; none gets ready."""

    def __init__(self) -> None:
        self.connected: list[str] = []

    def begin(self, fleet: Fleet) -> None:
        """Nothing comes by itself."""

    def connect(self, host: Host) -> Crew:
        """Notes it."""
        self.connected.append(host.name)
        desk: Any = None
        return AgentCrew(AgentLine(host.name), host.slots, desk)

    def is_ready(self, _crew: Crew) -> bool:
        """None is."""
        return False

    def finish(self) -> None:
        """Nothing is to be ended."""


def test_a_host_that_is_lost_once_it_is_ready_has_no_slots() -> None:
    desk: Any = None  # What a crew says to it is said once ranks are there.
    lines = {name: AgentLine(name) for name in ("a", "b")}
    crews = {name: AgentCrew(line, 2, desk) for name, line in lines.items()}

    lines["b"].lose("its network is gone")

    fleet = Fleet(crews, OPTIONS, print, None, silence_s=30, kept_s=80)
    assert fleet.slots == 2


@pytest.mark.parametrize(("has_ended", "after_s"), [(False, 80.0), (True, 0.0)])
def test_a_host_that_may_keep_its_ranks_is_not_tried_before_they_have_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, has_ended: bool, after_s: float
) -> None:
    now = 1000.0
    monkeypatch.setattr(fleet_module.time, "monotonic", lambda: now)
    options = launch_options(tmp_path / "card")
    desk: Any = type("Desk", (), {"options": options})()
    line = AgentLine("a")
    crew = AgentCrew(line, 2, desk)
    crew.take({"type": "door", "address": "127.0.0.1:1"})
    growth = Growth()
    # The ranks of an elastic job are given up sooner than all of them at once.
    fleet = Fleet({"host a": crew}, OPTIONS, print, growth, 5.0, options.kept_s)

    line.has_ended = has_ended
    line.lose("its network is gone")
    fleet.advance()

    if after_s:
        now += after_s - 0.1
        fleet.take([Host("a", 2)])
        assert growth.connected == []
        now += 0.1
    fleet.take([Host("a", 2)])
    assert growth.connected == ["a"]


def test_a_host_that_was_cut_off_from_the_start_is_not_tried_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0
    monkeypatch.setattr(fleet_module.time, "monotonic", lambda: now)
    growth = Growth()
    fleet = Fleet({}, OPTIONS, print, growth, 5.0, 80.0, cut_off=["host a"])

    fleet.take([Host("a", 2), Host("b", 2)])
    assert growth.connected == ["b"]

    now += 80.0
    fleet.take([Host("a", 2), Host("b", 2)])
    assert growth.connected == ["b", "a"]


def launch_options(card: Path) -> LaunchOptions:
    """Of a job that can be taken over, with a user's times."""
    return LaunchOptions(
        grace_period_s=10.0,
        output_directory=None,
        colour=False,
        verbose=False,
        timestamps=False,
        raw=False,
        watch=WatchOptions(status=False, event_log=None, metrics=None),
        encrypt=False,
        heartbeat_s=5.0,
        all_silent_s=30.0,
        tenure=Tenure(Card([], "/", {}), card, taken_over=False),
    )
