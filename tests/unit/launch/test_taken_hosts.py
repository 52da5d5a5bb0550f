"""Who takes a job over asks its agents: which ones serve it, and what of the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ring_keras._version import __version__
from ring_keras.launch import taken_hosts as module
from ring_keras.launch.agent_crew import AgentCrew
from ring_keras.launch.agent_line import AgentLine
from ring_keras.launch.card import Card, CardAgent
from ring_keras.launch.desk import CannotStartError
from ring_keras.launch.hosts import Host
from ring_keras.launch.source import Hosts
from ring_keras.launch.ssh import SshOptions
from ring_keras.launch.tenure import Tenure

SERVES: list[dict[str, Any]] = [{"type": "holds", "processes": []}]


def hello(**facts: Any) -> dict[str, Any]:
    last = {"generation": 1, "members": [0, 1, 2], "running": [], "ended": []}
    version = {"type": "hello", "ring_keras": __version__}
    told = {"term": 1, "ending": False, "alone": True}
    return {**version, **told, **last, **facts}


class Line(AgentLine):
    """An agent that greets with that, or does not, and answers a take-over."""

    def __init__(
        self, name: str, greeting: dict[str, Any] | None, answers: list[dict[str, Any]]
    ) -> None:
        super().__init__(name)
        self.greeting = greeting
        self._answers = answers
        self.asked: list[Any] = []

    def send(self, message: Any) -> None:
        """Answers at once."""
        self.asked.append(message)
        for answer in self._answers:
            self.take(answer)


class Job:
    """The agents of a card, in its order."""

    def __init__(self, path: Path, lines: list[Line]) -> None:
        self.lines = {line.name: line for line in lines}
        agents = [CardAgent(name, name, 1, "127.0.0.1:1") for name in self.lines]
        self.tenure = Tenure(Card([], "/", {}, agents=agents), path, taken_over=True)
        self.superseded: list[int] = []
        self.said: list[str] = []
        self.desk: Any = SimpleNamespace(
            options=SimpleNamespace(tenure=self.tenure),
            token_file=path,
            output=SimpleNamespace(say=self.said.append),
            on_superseded=self.superseded.append,
            run_until=self._run_until,
        )

    def _run_until(self, condition: Callable[[], bool], _timeout_s: float) -> bool:
        if self.superseded:
            raise CannotStartError("superseded")
        return condition()

    def connected(
        self, host: Host, _reached_as: str, name: str, _ssh: SshOptions
    ) -> AgentCrew:
        """As SshHosts does it."""
        crew = AgentCrew(self.lines[name], host.slots, self.desk)
        crew.listed_as = host.name
        greeting = self.lines[name].greeting
        if greeting is not None:
            crew.line.take(greeting)
        return crew

    def made_ready(self, crews: Mapping[str, AgentCrew]) -> Hosts:
        """All are."""
        return Hosts(crews, "127.0.0.1")

    def take_over(self, monkeypatch: pytest.MonkeyPatch) -> Hosts:
        """Takes it over."""
        monkeypatch.setattr(module, "SshHosts", lambda _job, _desk: self)
        job: Any = SimpleNamespace(ssh=SshOptions())
        return module.taken_hosts(job, self.tenure)(self.desk)


def test_an_agent_whose_ranks_are_ending_is_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ending = Line("b", hello(ending=True, term=5), [])
    job = Job(tmp_path / "card", [Line("a", hello(), SERVES), ending])

    hosts = job.take_over(monkeypatch)

    assert list(hosts.crews) == ["host a"]
    assert hosts.cut_off == {"host b"}
    assert ending.asked == []
    assert job.tenure.unheard == []
    assert "elastic: host b: its ranks are ending" in job.said


def test_an_agent_that_does_not_answer_is_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lines = [Line("a", hello(), []), Line("b", hello(), SERVES), Line("c", None, [])]
    job = Job(tmp_path / "card", lines)

    hosts = job.take_over(monkeypatch)

    assert list(hosts.crews) == ["host b"]
    assert hosts.cut_off == {"host a", "host c"}
    assert job.tenure.unheard == ["a", "c"]
    assert [agent.name for agent in job.tenure.card.agents] == ["a", "b", "c"]
    assert "elastic: host a: it said nothing for 5 s" in job.said


def test_who_comes_second_has_taken_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = Line("b", hello(), SERVES)
    superseded = [{"type": "superseded", "term": 2}]
    job = Job(tmp_path / "card", [Line("a", hello(), superseded), other])

    with pytest.raises(CannotStartError):
        job.take_over(monkeypatch)

    assert job.superseded == [2]
    assert other.asked == []


def test_a_majority_that_does_not_answer_is_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lines = [
        Line("a", hello(running=[0]), SERVES),
        Line("b", hello(running=[1]), []),
        Line("c", None, []),
    ]
    job = Job(tmp_path / "card", lines)
    job.tenure.by_majority = True

    with pytest.raises(CannotStartError, match="have 1 ranks of generation 1, and 2"):
        job.take_over(monkeypatch)
