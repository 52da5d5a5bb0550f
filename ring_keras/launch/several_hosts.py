"""Makes several hosts ready for a job, through an agent on each."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from ring_keras.launch.addresses import Probes
from ring_keras.launch.agent_crew import AgentCrew
from ring_keras.launch.desk import CannotStartError, Desk
from ring_keras.launch.discovery import HostScript
from ring_keras.launch.elastic_hosts import ElasticHosts, ElasticSshCrew
from ring_keras.launch.elastic_members import ElasticMembers
from ring_keras.launch.elastic_options import ElasticOptions
from ring_keras.launch.hosts import Host
from ring_keras.launch.members import FixedMembers, Meet, Members
from ring_keras.launch.output import say
from ring_keras.launch.places import Place, places_of
from ring_keras.launch.ssh import SshCrew, SshOptions
from ring_keras.network.addresses import is_own, own_addresses

__all__ = [
    "HostsJob",
    "RankCommand",
    "await_greetings",
    "common_address",
    "meet_hosts",
    "names_of",
]

# ssh gives up by itself; then Python has to start, from a slow disk maybe.
_HELLO_TIMEOUT_S = 90.0
_READY_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class RankCommand:
    """What an agent is told to run.

    Attributes:
        command: Of each rank.
        directory: In which ranks start.
        environment: ringrun's own, for ranks to inherit.
        chosen: Variables that ringrun's options set.
        as_horovod: Whether `import horovod` finds `ring_keras.horovod`.
        bind_to_cores: Whether each rank keeps to cores of its own.
    """

    command: Sequence[str]
    directory: str
    environment: Mapping[str, str]
    chosen: Mapping[str, str]
    as_horovod: bool
    bind_to_cores: bool


@dataclass(frozen=True)
class HostsJob:
    """A job of several hosts.

    Attributes:
        hosts: Each with as many slots as it gets ranks, or may get.
        plan: What they run.
        ssh: How their agents are started.
        launcher_address: Where the store shall listen; None: on an address of this
            host that all others reach.
        interfaces: Of this host, for such an address; empty: all.
        elastic: How the number of ranks may change; None: it does not.
    """

    hosts: Sequence[Host]
    plan: RankCommand
    ssh: SshOptions
    launcher_address: str | None
    interfaces: Sequence[str] = ()
    elastic: ElasticOptions | None = None


def meet_hosts(job: HostsJob) -> Meet:
    """Starts an agent on each host, and finds out whether all can start ranks."""

    def meet(desk: Desk) -> Members:
        slots: dict[SshCrew, int] = {}
        for host in job.hosts:
            reached_as, name = names_of(host)
            crew = (
                SshCrew(reached_as, name, job.ssh, desk)
                if job.elastic is None
                else ElasticSshCrew(reached_as, name, host, job.ssh, desk)
            )
            slots[crew] = host.slots
            desk.crews.append(crew)
        await_greetings(desk, list(slots))
        crews = _usable(job, desk, slots)
        _note_differences(crews)
        probes = Probes(desk.loop, _own_addresses(job))
        try:
            places = places_of([slots[crew] for crew in crews])
            for crew, own_places in zip(crews, places, strict=True):
                _prepare(crew, own_places, job.plan, probes)
            _await(desk, crews, "get ready", _READY_TIMEOUT_S)
            crews = _usable(job, desk, {crew: slots[crew] for crew in crews})
            tried = [host for host, _ in probes.addresses]
        finally:
            probes.close()
        store_host = common_address(
            tried,
            {_with_addresses(crew): crew.reached or [] for crew in crews},
        )
        if job.elastic is not None:
            size = min(job.elastic.size, sum(slots[crew] for crew in crews))
            options = replace(job.elastic, size=size)
            return _meet_members(job, options, desk, crews, store_host)
        return FixedMembers(desk, sum(host.slots for host in job.hosts), store_host)

    return meet


def _meet_members(
    job: HostsJob,
    options: ElasticOptions,
    desk: Desk,
    crews: Sequence[SshCrew],
    store_host: str,
) -> Members:
    """Agents that are ready to start processes, whose number may change."""
    probes = None
    if options.discovery is not None:
        probes = Probes(desk.loop, [store_host])  # For hosts that come later.

    def connect(host: Host) -> ElasticSshCrew:
        # Without a question to a server of names, for which all would wait.
        own = host.name in (socket.gethostname(), "localhost", *own_addresses())
        name = host.name.rpartition("@")[2]
        reached_as = None if own else host.name
        crew = ElasticSshCrew(reached_as, name, host, job.ssh, desk)
        crew.take_join = members.take
        return crew

    def prepare(crew: ElasticSshCrew) -> None:
        assert probes is not None
        _prepare(crew, places_of([crew.host.slots])[0], job.plan, probes)

    hosts = ElasticHosts(desk, options, store_host, connect, prepare)
    members = ElasticMembers(options, desk, hosts, store_host)
    for crew in crews:
        assert isinstance(crew, ElasticSshCrew)
        crew.take_join = members.take
        hosts.add_host(crew)
    # Times run out, too, without that anything happens.
    desk.loop.on_tick(hosts.advance)
    if options.discovery is not None:
        script = HostScript(options.discovery, desk.loop, hosts.take, desk.output.say)
        desk.crews.append(script)
    return members


def names_of(host: Host) -> tuple[str | None, str]:
    """As ssh takes it, which is None for this host; as messages call it."""
    user, at, name = host.name.rpartition("@")
    own = not (user or at) and is_own(name)
    return None if own else host.name, name


def await_greetings(desk: Desk, crews: Sequence[AgentCrew]) -> None:
    """Until each agent has greeted, with this version, or is gone."""
    _await(desk, crews, "greet", _HELLO_TIMEOUT_S)
    for crew in crews:
        problem = None if crew.gone else crew.version_problem()
        if problem is not None:
            crew.lose(problem)


def _prepare(
    crew: AgentCrew, places: Sequence[Place], plan: RankCommand, probes: Probes
) -> None:
    """Asks an agent whether ranks can be started, and which addresses it reaches."""
    crew.prepare(
        places,
        addresses=probes.addresses,
        nonce=probes.nonce,
        host_name=crew.name,
        **asdict(plan),
    )


def _own_addresses(job: HostsJob) -> list[str]:
    if job.launcher_address is not None:
        return [job.launcher_address]
    try:
        return own_addresses(job.interfaces)
    except ValueError as error:
        raise CannotStartError(
            f"--network-interface, or RING_KERAS_INTERFACES: {error}. If ranks run on "
            "other hosts only, --launcher-address says where they reach this one"
        ) from None


def _with_addresses(crew: AgentCrew) -> str:
    """For messages."""
    return f"{crew.name} ({', '.join(crew.addresses) or 'no address but loopback'})"


def common_address(tried: Sequence[str], reached: dict[str, list[str]]) -> str:
    """The first address that all hosts reach.

    Raises:
        CannotStartError: If there is none.
    """
    for address in tried:
        if all(address in found for found in reached.values()):
            return address
    found = "; ".join(
        f"{name} reaches {' and '.join(addresses) or 'none'}"
        for name, addresses in reached.items()
    )
    raise CannotStartError(
        f"no address of this host is reached by all: of {', '.join(tried)}, {found}. "
        "Is there a firewall? --launcher-address names another"
    )


def _usable(
    job: HostsJob, desk: Desk, slots: Mapping[SshCrew, int]
) -> Sequence[SshCrew]:
    """Those whose agents are there; all, or enough where hosts may come later.

    Raises:
        CannotStartError: If others are needed.
    """
    there = [crew for crew in slots if crew.gone is None]
    gone = [f"host {crew.name}: {crew.gone}" for crew in slots if crew.gone is not None]
    options = job.elastic
    if options is None or options.discovery is None:
        least = sum(slots.values())
    else:
        least = options.min_size
    if sum(slots[crew] for crew in there) < least:
        raise CannotStartError("\nringrun: ".join(gone))
    for why in gone:
        desk.output.say(f"elastic: {why}")
    return there


def _await(desk: Desk, crews: Sequence[AgentCrew], what: str, timeout_s: float) -> None:
    """Until each agent has done it, or is gone because it cannot."""

    def settled(crew: AgentCrew) -> bool:
        answer = crew.hello if what == "greet" else crew.reached
        return answer is not None or crew.gone is not None

    if not desk.run_until(lambda: all(map(settled, crews)), timeout_s):
        for crew in crews:
            if not settled(crew):
                crew.lose(f"it did not {what} within {timeout_s:g} s")


def _note_differences(crews: Sequence[AgentCrew]) -> None:
    """Says what may be meant, but seldom is."""
    for key, title in (("python", "Python"), ("tensorflow", "TensorFlow")):
        found = {crew.name: str((crew.hello or {}).get(key)) for crew in crews}
        if len(set(found.values())) > 1:
            each = ", ".join(
                f"{name}: {value or 'none'}" for name, value in found.items()
            )
            say(f"the hosts' versions of {title} differ: {each}")
