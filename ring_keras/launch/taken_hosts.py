"""The hosts of a job whose launcher was lost: agents that have kept their ranks.

See docs/design/0054-a-launcher-that-can-be-lost.md.
"""

from __future__ import annotations

from ring_keras.config import split_address
from ring_keras.launch.agent_crew import AgentCrew
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
    crews = _called(hosts, job.ssh, desk, tenure)
    hellos = [crew.line.hello or {} for crew in crews]
    if tenure.by_majority:
        problem = minority_problem(hellos, len(tenure.card.agents))
        if problem is not None:
            raise CannotStartError(problem)
    tenure.term = 1 + max(hello["term"] for hello in hellos)
    for crew in crews:
        crew.take_over(tenure.term)
    desk.run_until(
        lambda: all(crew.taken_over or crew.gone is not None for crew in crews),
        _ANSWER_TIMEOUT_S,
    )
    for crew in crews:
        if not crew.taken_over:
            why = crew.gone or f"it said nothing for {_ANSWER_TIMEOUT_S:g} s"
            raise CannotStartError(f"{crew.title}: {why}")
    tenure.keep(crew.name for crew in crews)
    desk.output.say(
        f"elastic: took the job over, as its launcher of term {tenure.term}"
    )
    return hosts.made_ready({f"host {crew.listed_as}": crew for crew in crews})


def _called(
    hosts: SshHosts, ssh: SshOptions, desk: Desk, tenure: Tenure
) -> list[AgentCrew]:
    """Those of the card that are there.

    Raises:
        CannotStartError: If none is.
    """
    crews = []
    for agent in tenure.card.agents:
        host, port = split_address(agent.address)
        by_call = SshOptions(
            waiting_port=port,
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
    there, lost = [], []
    for crew in crews:
        if crew.line.hello is None:
            why = crew.gone or f"it did not answer within {_ANSWER_TIMEOUT_S:g} s"
            crew.line.give_up(why)
            lost.append(f"{crew.title}: {why}")
        elif (problem := crew.line.version_problem()) is not None:
            raise CannotStartError(f"{crew.title}: {problem}")
        else:
            there.append(crew)
    if not there:
        found = "; ".join(lost) or "the card names none"
        raise CannotStartError(f"no agent of {tenure.path} is there: {found}")
    for text in lost:
        desk.output.say(f"elastic: {text}")
    return there
