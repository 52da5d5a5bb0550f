"""Looks at all hosts of a job, and at what is between them, through their agents."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ring_keras.launch.desk import Desk
from ring_keras.launch.doctor.between import clocks, networks, versions
from ring_keras.launch.doctor.crew import DoctorCrew
from ring_keras.launch.doctor.finding import Between, Finding, State, from_json
from ring_keras.launch.doctor.job_shape import JobShape
from ring_keras.launch.doctor.office import open_desk
from ring_keras.launch.doctor.report import HostReport, Report
from ring_keras.launch.doctor.speed import KEY_NBYTES
from ring_keras.launch.hosts import Host
from ring_keras.launch.several_hosts import await_greetings, names_of
from ring_keras.launch.ssh import SshOptions

__all__ = ["Examination", "examine"]

_EXAMINE_TIMEOUT_S = 120.0
_ANSWER_TIMEOUT_S = 30.0
# Of many hosts, each of which may not answer for seconds.
_REACH_TIMEOUT_S = 120.0
_TIME_QUESTIONS = 5
_SPEED_S = 0.4
# Of a host with many networks, so many are measured.
_MOST_PLACES = 3


@dataclass(frozen=True)
class Examination:
    """What is to be looked at.

    Attributes:
        hosts: With the ranks of each; the first may be this one.
        ssh: How their agents are started.
        environment: ringrun's own, for ranks to inherit.
        chosen: Variables that ringrun's options set.
        as_horovod: Whether `import horovod` finds `ring_keras.horovod`.
        bind_to_cores: Whether each rank keeps to cores of its own.
    """

    hosts: Sequence[Host]
    ssh: SshOptions
    environment: Mapping[str, str]
    chosen: Mapping[str, str]
    as_horovod: bool
    bind_to_cores: bool


def examine(examination: Examination, front_fd: int, directory: Path) -> Report:
    """Does it; what is started is gone in the end.

    Args:
        examination: What is to be looked at.
        front_fd: Reads end of file once the front has died.
        directory: For files.
    """
    patients = _Patients(examination, open_desk(front_fd, directory))
    try:
        patients.meet()
        patients.look_at_each()
        between = patients.look_between() if len(examination.hosts) > 1 else []
        patients.note_losses()
    finally:
        patients.dismiss()
    return Report(list(patients.reports.values()), between)


class _Patients:
    """The hosts, as far as their agents are there."""

    def __init__(self, examination: Examination, desk: Desk) -> None:
        self._examination = examination
        self._desk = desk
        self.reports: dict[DoctorCrew, HostReport] = {}
        for host in examination.hosts:
            reached_as, name = names_of(host)
            crew = DoctorCrew(reached_as, name, examination.ssh, desk)
            desk.crews.append(crew)
            self.reports[crew] = HostReport(name, host.slots)

    def meet(self) -> None:
        """Until each agent has greeted, or is gone."""
        await_greetings(self._desk, list(self.reports))
        for crew, report in self.reports.items():
            if crew.gone is None:
                crew.begin_check(
                    environment=dict(self._examination.environment),
                    chosen=dict(self._examination.chosen),
                    as_horovod=self._examination.as_horovod,
                    host_name=crew.name,
                    places=[None] * report.local_size,
                )

    def look_at_each(self) -> None:
        """All that concerns one host alone."""
        hosts = self._examination.hosts
        size = sum(host.slots for host in hosts)
        questions = {
            crew: {
                "what": "examine",
                "job": JobShape(
                    local_size=report.local_size,
                    size=size,
                    hosts=len(hosts),
                    holds_store=crew.is_here,
                    bind_to_cores=self._examination.bind_to_cores,
                    directory=str(Path.cwd()),
                ).as_json(),
            }
            for crew, report in self.reports.items()
        }
        for crew, answer in self._ask(questions, _EXAMINE_TIMEOUT_S).items():
            findings = [from_json(value) for value in answer["findings"]]
            self.reports[crew].findings += findings
        for crew, answer in self._ask_all("tell facts").items():
            self.reports[crew].facts = answer["facts"]

    def look_between(self) -> list[Between]:
        """All that concerns several."""
        there = self._there()
        if len(there) < 2:
            return []
        facts = {crew.name: self.reports[crew].facts for crew in there}
        found = versions.compare(facts, self._examination.ssh.python)
        found += clocks.compare(self._clock_offsets())
        return found + self._look_at_networks()

    def note_losses(self) -> None:
        """Says of each host that was not there, or is not any more, why."""
        for crew, report in self.reports.items():
            if crew.gone is not None:
                report.findings.insert(0, _loss(crew))

    def dismiss(self) -> None:
        """Agents end at the end of their line."""
        for crew in self.reports:
            crew.give_up("the examination is over")

    def _clock_offsets(self) -> dict[str, clocks.Offset]:
        best: dict[str, clocks.Offset] = {}
        for crew in self._there():
            for _ in range(_TIME_QUESTIONS):
                before = time.time()
                answers = self._ask({crew: {"what": "tell time"}}, _ANSWER_TIMEOUT_S)
                after = time.time()
                if crew not in answers:
                    break
                theirs = answers[crew]["time"]
                offset = clocks.Offset(
                    theirs - (before + after) / 2, (after - before) / 2
                )
                known = best.get(crew.name)
                if known is None or offset.uncertainty_s < known.uncertainty_s:
                    best[crew.name] = offset
        return best

    def _look_at_networks(self) -> list[Between]:
        key = secrets.token_hex(KEY_NBYTES // 2)
        answers = self._ask_all("listen", keep=True, key=key)
        found = [
            Between((crew.name,), _no_network(crew.name, answer["problem"]))
            for crew, answer in answers.items()
            if "problem" in answer
        ]
        places = {
            crew.name: [networks.Listener(*place) for place in answer["places"]]
            for crew, answer in answers.items()
            if "places" in answer
        }
        if len(places) < 2:
            return found
        questions = {
            crew: {
                "what": "reach",
                "key": key,
                "hosts": {
                    host: [(place.address, place.port) for place in some]
                    for host, some in places.items()
                    if host != crew.name
                },
            }
            for crew in answers
            if crew.name in places
        }
        reached = {
            (crew.name, host): set(addresses)
            for crew, answer in self._ask(questions, _REACH_TIMEOUT_S).items()
            for host, addresses in answer["reached"].items()
        }
        hosts = {name for name, _ in reached}
        places = {name: places[name] for name in places if name in hosts}
        found += networks.judge_reach(places, reached)
        common = {
            host: networks.one_of_each_interface(some)
            for host, some in networks.common(places, reached).items()
        }
        return found + networks.judge_speed(self._measure(common, key))

    def _measure(
        self, places: Mapping[str, Sequence[networks.Listener]], key: str
    ) -> dict[tuple[str, str], list[networks.Trial]]:
        """Neighbours on the ring of all hosts, there and back."""
        crews = {crew.name: crew for crew in self.reports}
        trials: dict[tuple[str, str], list[networks.Trial]] = {}
        reachable = [host for host, some in places.items() if some]
        if len(reachable) < 2:
            return {}
        for pairs in networks.rounds(reachable):
            for direction in (pairs, [(second, first) for first, second in pairs]):
                for number in range(_MOST_PLACES):
                    asked = {
                        (sender, receiver): places[receiver][number]
                        for sender, receiver in direction
                        if number < len(places[receiver])
                    }
                    questions = {
                        crews[sender]: {
                            "what": "measure",
                            "key": key,
                            "address": [place.address, place.port],
                            "lasts_s": _SPEED_S,
                        }
                        for (sender, _), place in asked.items()
                    }
                    answers = self._ask(questions, _ANSWER_TIMEOUT_S, keep=True)
                    for (sender, receiver), place in asked.items():
                        answer = answers.get(crews[sender], {})
                        trials.setdefault((sender, receiver), []).append(
                            networks.Trial(
                                place,
                                answer.get("measured"),
                                answer.get("problem", "there was no answer"),
                            )
                        )
        return trials

    def _there(self) -> list[DoctorCrew]:
        return [crew for crew in self.reports if crew.gone is None]

    def _ask_all(
        self, what: str, keep: bool = False, **more: Any
    ) -> dict[DoctorCrew, dict[str, Any]]:
        questions = {crew: {"what": what, **more} for crew in self.reports}
        return self._ask(questions, _ANSWER_TIMEOUT_S, keep)

    def _ask(
        self,
        questions: Mapping[DoctorCrew, Mapping[str, Any]],
        timeout_s: float,
        keep: bool = False,
    ) -> dict[DoctorCrew, dict[str, Any]]:
        """Asks each that is there, at once; the answers.

        One that does not answer, or that says that it has a problem, is lost, and
        answers nothing any more; a problem is an answer, if `keep` says so.
        """
        asked = [crew for crew in questions if crew.gone is None]
        for crew in asked:
            crew.ask(questions[crew])
        self._desk.run_until(
            lambda: all(crew.answer is not None or crew.gone for crew in asked),
            timeout_s,
        )
        answers = {}
        for crew in asked:
            if crew.gone is not None:
                continue
            if crew.answer is None:
                crew.lose(f"it did not answer within {timeout_s:g} s")
            elif "problem" in crew.answer and not keep:
                crew.lose(str(crew.answer["problem"]))
            else:
                answers[crew] = crew.answer
        return answers


def _no_network(host: str, problem: str) -> Finding:
    return Finding(
        "reachable",
        State.FAILURE,
        f"{host} listens nowhere: {problem}",
        expected="an address that other hosts may reach",
        fix=f"ssh {host} ip -brief address",
    )


def _loss(crew: DoctorCrew) -> Finding:
    return Finding(
        "agent",
        State.FAILURE,
        str(crew.gone),
        expected="a host on which ringrun can start ranks",
        fix=crew.how_to_look(),
    )
