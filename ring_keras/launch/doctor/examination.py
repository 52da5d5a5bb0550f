"""Looks at all hosts of a job, and at what is between them, through their agents."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ring_keras.config import keras_backend
from ring_keras.launch.agent_line import await_greetings
from ring_keras.launch.doctor.between import clocks, networks, versions
from ring_keras.launch.doctor.finding import Between, Finding, State, from_json
from ring_keras.launch.doctor.job_shape import JobShape
from ring_keras.launch.doctor.patient import Patient
from ring_keras.launch.doctor.report import HostReport, Report
from ring_keras.launch.doctor.speed import KEY_NBYTES
from ring_keras.launch.guard import kill_descendants
from ring_keras.launch.hosts import Host
from ring_keras.launch.loop import Loop
from ring_keras.launch.ssh import SshOptions
from ring_keras.launch.ssh_hosts import names_of

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
    patients = _Patients(examination, Loop(front_fd, directory, _end_at_once))
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

    def __init__(self, examination: Examination, loop: Loop) -> None:
        self._examination = examination
        self._loop = loop
        self.reports: dict[Patient, HostReport] = {}
        for host in examination.hosts:
            reached_as, name = names_of(host)
            patient = Patient(reached_as, name, examination.ssh, loop)
            self.reports[patient] = HostReport(name, host.slots)

    def meet(self) -> None:
        """Until each agent has greeted, or is gone."""
        await_greetings(self._loop.run_until, list(self.reports))
        for patient, report in self.reports.items():
            if patient.gone is None:
                patient.begin_check(
                    environment=dict(self._examination.environment),
                    chosen=dict(self._examination.chosen),
                    as_horovod=self._examination.as_horovod,
                    host_name=patient.name,
                    places=[None] * report.local_size,
                )

    def look_at_each(self) -> None:
        """All that concerns one host alone."""
        hosts = self._examination.hosts
        size = sum(host.slots for host in hosts)
        questions = {
            patient: {
                "what": "examine",
                "job": JobShape(
                    local_size=report.local_size,
                    size=size,
                    hosts=len(hosts),
                    holds_store=patient.is_here,
                    bind_to_cores=self._examination.bind_to_cores,
                    directory=str(Path.cwd()),
                ).as_json(),
            }
            for patient, report in self.reports.items()
        }
        for patient, answer in self._ask(questions, _EXAMINE_TIMEOUT_S).items():
            findings = [from_json(value) for value in answer["findings"]]
            self.reports[patient].findings += findings
        for patient, answer in self._ask_all("tell facts").items():
            self.reports[patient].facts = answer["facts"]

    def look_between(self) -> list[Between]:
        """All that concerns several."""
        there = self._there()
        if len(there) < 2:
            return []
        facts = {patient.name: self.reports[patient].facts for patient in there}
        found = versions.compare(
            facts, self._examination.ssh.python, keras_backend().name
        )
        found += clocks.compare(self._clock_offsets())
        return found + self._look_at_networks()

    def note_losses(self) -> None:
        """Says of each host that was not there, or is not any more, why."""
        for patient, report in self.reports.items():
            if patient.gone is not None:
                report.findings.insert(0, _loss(patient))

    def dismiss(self) -> None:
        """Agents end at the end of their line."""
        for patient in self.reports:
            patient.give_up("the examination is over")

    def _clock_offsets(self) -> dict[str, clocks.Offset]:
        best: dict[str, clocks.Offset] = {}
        for patient in self._there():
            for _ in range(_TIME_QUESTIONS):
                before = time.time()
                answers = self._ask({patient: {"what": "tell time"}}, _ANSWER_TIMEOUT_S)
                after = time.time()
                if patient not in answers:
                    break
                theirs = answers[patient]["time"]
                offset = clocks.Offset(
                    theirs - (before + after) / 2, (after - before) / 2
                )
                known = best.get(patient.name)
                if known is None or offset.uncertainty_s < known.uncertainty_s:
                    best[patient.name] = offset
        return best

    def _look_at_networks(self) -> list[Between]:
        key = secrets.token_hex(KEY_NBYTES // 2)
        answers = self._ask_all("listen", keep=True, key=key)
        found = [
            Between((patient.name,), _no_network(patient.name, answer["problem"]))
            for patient, answer in answers.items()
            if "problem" in answer
        ]
        places = {
            patient.name: [networks.Listener(*place) for place in answer["places"]]
            for patient, answer in answers.items()
            if "places" in answer
        }
        if len(places) < 2:
            return found
        questions = {
            patient: {
                "what": "reach",
                "key": key,
                "hosts": {
                    host: [(place.address, place.port) for place in some]
                    for host, some in places.items()
                    if host != patient.name
                },
            }
            for patient in answers
            if patient.name in places
        }
        reached = {
            (patient.name, host): set(addresses)
            for patient, answer in self._ask(questions, _REACH_TIMEOUT_S).items()
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
        patients = {patient.name: patient for patient in self.reports}
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
                        patients[sender]: {
                            "what": "measure",
                            "key": key,
                            "address": [place.address, place.port],
                            "lasts_s": _SPEED_S,
                        }
                        for (sender, _), place in asked.items()
                    }
                    answers = self._ask(questions, _ANSWER_TIMEOUT_S, keep=True)
                    for (sender, receiver), place in asked.items():
                        answer = answers.get(patients[sender], {})
                        trials.setdefault((sender, receiver), []).append(
                            networks.Trial(
                                place,
                                answer.get("measured"),
                                answer.get("problem", "there was no answer"),
                            )
                        )
        return trials

    def _there(self) -> list[Patient]:
        return [patient for patient in self.reports if patient.gone is None]

    def _ask_all(
        self, what: str, keep: bool = False, **more: Any
    ) -> dict[Patient, dict[str, Any]]:
        questions = {patient: {"what": what, **more} for patient in self.reports}
        return self._ask(questions, _ANSWER_TIMEOUT_S, keep)

    def _ask(
        self,
        questions: Mapping[Patient, Mapping[str, Any]],
        timeout_s: float,
        keep: bool = False,
    ) -> dict[Patient, dict[str, Any]]:
        """Asks each that is there, at once; the answers.

        One that does not answer, or that says that it has a problem, is lost, and
        answers nothing any more; a problem is an answer, if `keep` says so.
        """
        asked = [patient for patient in questions if patient.gone is None]
        for patient in asked:
            patient.ask(questions[patient])
        self._loop.run_until(
            lambda: all(one.answer is not None or one.gone for one in asked),
            timeout_s,
        )
        answers = {}
        for patient in asked:
            if patient.gone is not None:
                continue
            if patient.answer is None:
                patient.lose(f"it did not answer within {timeout_s:g} s")
            elif "problem" in patient.answer and not keep:
                patient.lose(str(patient.answer["problem"]))
            else:
                answers[patient] = patient.answer
        return answers


def _end_at_once(number: int) -> None:
    """Nothing has to be saved."""
    kill_descendants()
    os._exit(128 + number)


def _no_network(host: str, problem: str) -> Finding:
    return Finding(
        "reachable",
        State.FAILURE,
        f"{host} listens nowhere: {problem}",
        expected="an address that other hosts may reach",
        fix=f"ssh {host} ip -brief address",
    )


def _loss(patient: Patient) -> Finding:
    return Finding(
        "agent",
        State.FAILURE,
        str(patient.gone),
        expected="a host on which ringrun can start ranks",
        fix=patient.how_to_look(),
    )
