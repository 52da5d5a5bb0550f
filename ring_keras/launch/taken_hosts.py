"""The hosts of a job whose launcher was lost: agents that have kept their ranks.

See docs/design/0054-a-launcher-that-can-be-lost.md.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from ring_keras.config import split_address
from ring_keras.launch.agent_crew import AgentCrew
from ring_keras.launch.agent_door import RANKS_ARE_ENDING
from ring_keras.launch.agent_line import AgentLine
from ring_keras.launch.desk import CannotStartError, Desk
from ring_keras.launch.hosts import Host
from ring_keras.launch.majority import minority_problem
from ring_keras.launch.source import Hosts, Source
from ring_keras.launch.ssh import SshOptions
from ring_keras.launch.ssh_hosts import HostsJob, SshHosts
from ring_keras.launch.tenure import Tenure

__all__ = ["taken_hosts"]

# An agent that is there answers at once; a host that is lost says nothing.
_ANSWER_TIMEOUT_S = 5.0


def taken_hosts(job: HostsJob, tenure: Tenure) -> Source:
    """Calls the agents of a card, and takes over the ranks that they have."""
    return lambda desk: _gathered(job, desk, tenure)


def _gathered(job: HostsJob, desk: Desk, tenure: Tenure) -> Hosts:
    hosts = SshHosts(job, desk)
    called = _called(hosts, job.ssh, desk, tenure)
    there = _heard(called, desk, tenure)
    _require_majority(there, tenure)
    tenure.term = 1 + max(int((crew.line.hello or {})["term"]) for crew in there)
    taken = _taken(there, desk, tenure)
    _require_majority(taken, tenure)
    # Those that say nothing may have their ranks: whoever comes next calls them, too.
    tenure.keep(crew.name for crew in called if not crew.line.has_ended)
    tenure.unheard = [
        crew.name
        for crew in called
        if _may_keep_ranks(crew) and crew.gone != RANKS_ARE_ENDING
    ]
    desk.output.say(
        f"elastic: took the job over, as its launcher of term {tenure.term}"
    )
    ready = hosts.made_ready({_listed(crew): crew for crew in taken})
    cut_off = {_listed(crew) for crew in called if _may_keep_ranks(crew)}
    return dataclasses.replace(ready, cut_off=cut_off)


def _listed(crew: AgentCrew) -> str:
    return f"host {crew.listed_as}"


def _may_keep_ranks(crew: AgentCrew) -> bool:
    """Whether it is not heard, and has ranks that another launcher may take over."""
    return crew.gone is not None and not crew.line.has_ended


def _called(
    hosts: SshHosts, ssh: SshOptions, desk: Desk, tenure: Tenure
) -> list[AgentCrew]:
    """Those of the card; each has greeted, or is gone."""
    crews = []
    for agent in tenure.card.agents:
        host, port = split_address(agent.address)
        by_call = SshOptions(
            waiting_port=port,
            at_door=True,
            secret_file=str(desk.token_file),
            silence_s=ssh.silence_s,
        )
        listed = Host(agent.listed_as, agent.slots)
        crews.append(hosts.connected(listed, host, agent.name, by_call))
    lines = [crew.line for crew in crews]
    desk.run_until(
        lambda: all(line.hello is not None or line.gone is not None for line in lines),
        _ANSWER_TIMEOUT_S,
    )
    for line in lines:
        if line.hello is None and line.gone is None:
            _give_up(line, f"it did not answer within {_ANSWER_TIMEOUT_S:g} s")
        elif line.hello is not None and line.hello.get("ending"):
            _give_up(line, RANKS_ARE_ENDING)
    return crews


def _give_up(line: AgentLine, why: str) -> None:
    line.give_up(why)
    line.lose(why)  # Now, and not once what keeps the line has ended.


def _require_majority(there: Sequence[AgentCrew], tenure: Tenure) -> None:
    """Raises CannotStartError where these may not decide, and are asked to."""
    if tenure.by_majority:
        hellos = [crew.line.hello or {} for crew in there]
        problem = minority_problem(hellos, len(tenure.card.agents))
        if problem is not None:
            raise CannotStartError(problem)


def _taken(there: Sequence[AgentCrew], desk: Desk, tenure: Tenure) -> list[AgentCrew]:
    """Those that serve this launcher now.

    The first one is asked alone: of two launchers that come at once it serves one, and
    the other has taken nothing.

    Raises:
        CannotStartError: If none does.
    """
    taken: list[AgentCrew] = []
    rest = list(there)
    while rest:
        asked = rest if taken else rest[:1]
        rest = rest[len(asked) :]
        for crew in asked:
            crew.take_over(tenure.term)
        desk.run_until(functools.partial(_have_decided, asked), _ANSWER_TIMEOUT_S)
        for crew in asked:
            if not crew.taken_over:
                why = f"it said nothing for {_ANSWER_TIMEOUT_S:g} s"
                _give_up(crew.line, why)
                desk.output.say(f"elastic: {crew.title}: {crew.gone}")
        taken += [crew for crew in asked if crew.taken_over]
    if not taken:
        lost = "; ".join(f"{crew.title}: {crew.gone}" for crew in there)
        raise CannotStartError(f"no agent of {tenure.path} serves it: {lost}")
    return taken


def _have_decided(asked: Sequence[AgentCrew]) -> bool:
    return all(crew.taken_over or crew.gone is not None for crew in asked)


def _heard(crews: Sequence[AgentCrew], desk: Desk, tenure: Tenure) -> list[AgentCrew]:
    """Those that are there.

    Raises:
        CannotStartError: If none is.
    """
    for crew in crews:
        problem = crew.line.version_problem() if crew.line.hello is not None else None
        if problem is not None:
            raise CannotStartError(f"{crew.title}: {problem}")
    lost = [f"{crew.title}: {crew.gone}" for crew in crews if crew.gone is not None]
    there = [crew for crew in crews if crew.gone is None]
    if not there:
        found = "; ".join(lost) or "the card names none"
        raise CannotStartError(f"no agent of {tenure.path} is there: {found}")
    for text in lost:
        desk.output.say(f"elastic: {text}")
    return there
