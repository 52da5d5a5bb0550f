"""Hosts on which ringrun starts agents: by ssh, or what takes its place."""

from __future__ import annotations

import functools
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass

from ring_keras.launch.addresses import Probes
from ring_keras.launch.agent_crew import AgentCrew
from ring_keras.launch.agent_line import await_greetings
from ring_keras.launch.awaited_hosts import COME_TIMEOUT_S, AwaitedHosts
from ring_keras.launch.crew import Crew
from ring_keras.launch.desk import CannotStartError, Desk
from ring_keras.launch.discovery import HostScript
from ring_keras.launch.fleet import Fleet
from ring_keras.launch.hosts import Host
from ring_keras.launch.output import say
from ring_keras.launch.places import Place, places_of
from ring_keras.launch.source import Hosts, Source
from ring_keras.launch.ssh import SshLine, SshOptions
from ring_keras.network.addresses import is_own, own_addresses

__all__ = [
    "HostsJob",
    "RankCommand",
    "SshHosts",
    "common_address",
    "names_of",
    "ssh_hosts",
]

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
    """

    hosts: Sequence[Host]
    plan: RankCommand
    ssh: SshOptions
    launcher_address: str | None
    interfaces: Sequence[str] = ()


def ssh_hosts(job: HostsJob) -> Source:
    """Starts an agent on each host, and finds out whether all can start ranks."""
    # Now, while Ctrl-C still ends all: servers of names may answer nothing for long.
    names = [names_of(host) for host in job.hosts]
    return lambda desk: SshHosts(job, desk).gather(names)


class SshHosts:
    """The hosts of one job: those that it begins with, and those that come later."""

    def __init__(self, job: HostsJob, desk: Desk) -> None:
        self._job = job
        self._desk = desk
        self._probes = Probes(desk.loop, _own_addresses(job))
        self._store_host = ""
        self._began_at: dict[Crew, float] = {}
        self._script: HostScript | None = None
        self._name_again: Callable[[], None] | None = None

    def gather(self, names: Sequence[tuple[str | None, str]]) -> Hosts:
        """Until enough are ready; of each host: see `names_of`."""
        desk = self._desk
        crews = {
            f"host {host.name}": self._connect(host, *of_host)
            for host, of_host in zip(self._job.hosts, names, strict=True)
        }
        await_greetings(desk.run_until, [crew.line for crew in crews.values()])
        if desk.options.elastic is not None and desk.options.elastic.discovery:
            crews = AwaitedHosts(crews, self.connect, desk).wait()
        crews = self._usable(crews)
        _note_differences(crews.values())
        return self.made_ready(crews)

    def made_ready(self, crews: Mapping[str, AgentCrew]) -> Hosts:
        """Has agents that have greeted get ready; finds where they reach this host."""
        desk = self._desk
        places = places_of([crew.slots for crew in crews.values()])
        for crew, own_places in zip(crews.values(), places, strict=True):
            self._prepare(crew, own_places)
        _await_ready(desk, crews.values())
        crews = self._usable(crews)
        self._store_host = common_address(
            [host for host, _ in self._probes.addresses],
            {_with_addresses(crew): crew.reached or [] for crew in crews.values()},
        )
        self._probes.close()
        if desk.options.tenure is not None:
            desk.options.tenure.launcher_host = self._store_host
        if not self._may_grow():
            return Hosts(crews, self._store_host)
        self._probes = Probes(desk.loop, [self._store_host])
        return Hosts(crews, self._store_host, self)

    def _may_grow(self) -> bool:
        """Whether hosts come, or come back, while the job runs."""
        elastic = self._desk.options.elastic
        if elastic is None or elastic.max_size is None:
            return False
        # A scheduler, which starts agents in place of ssh, takes lost hosts away by
        # itself: another step for one would hang, and hold it.
        return elastic.discovery is not None or not self._job.ssh.instead

    def begin(self, fleet: Fleet) -> None:
        """Asks the script for hosts from now on; without one, they stay as they are."""
        elastic, loop = self._desk.options.elastic, self._desk.loop
        assert elastic is not None
        if elastic.discovery is not None:
            self._script = HostScript(
                elastic.discovery, loop, fleet.take, self._desk.output.say
            )
        else:
            # One that is lost is tried again.
            self._name_again = functools.partial(fleet.take, self._job.hosts)
            loop.on_tick(self._name_again)

    def connect(self, host: Host) -> AgentCrew:
        """Starts an agent on one that comes, or comes back."""
        # Without a question to a server of names, for which all would wait.
        own = host.name in (socket.gethostname(), "localhost", *own_addresses())
        name = host.name.rpartition("@")[2]
        return self._connect(host, None if own else host.name, name)

    def is_ready(self, crew: Crew) -> bool:
        """Whether such a one can start ranks; asks it, once it has greeted."""
        assert isinstance(crew, AgentCrew)
        if crew.reached is not None:
            if self._store_host in crew.reached:
                return True
            why = f"it does not reach {self._store_host}, as the others do"
            crew.line.give_up(why)
        elif crew.line.hello is not None and not crew.prepared:
            problem = crew.line.version_problem()
            if problem is None:
                self._prepare(crew, places_of([crew.slots])[0])
            else:
                crew.line.give_up(problem)
        elif time.monotonic() - self._began_at[crew] > COME_TIMEOUT_S:
            crew.line.give_up(f"it did not get ready within {COME_TIMEOUT_S:g} s")
        return False

    def finish(self) -> None:
        """No host is needed any more."""
        if self._script is not None:
            self._script.finish()
        if self._name_again is not None:
            self._desk.loop.no_tick(self._name_again)

    def _connect(self, host: Host, reached_as: str | None, name: str) -> AgentCrew:
        return self.connected(host, reached_as, name, self._job.ssh)

    def connected(
        self, host: Host, reached_as: str | None, name: str, ssh: SshOptions
    ) -> AgentCrew:
        """Begins to connect to a host's agent, in whatever way."""
        desk = self._desk
        line = SshLine(reached_as, name, ssh, desk.loop, desk.output.say)
        crew = AgentCrew(line, host.slots, desk)
        crew.listed_as = host.name
        self._began_at[crew] = time.monotonic()
        desk.crews.append(crew)
        return crew

    def _prepare(self, crew: AgentCrew, places: Sequence[Place]) -> None:
        """Asks whether ranks can be started, and which addresses the agent reaches."""
        crew.prepare(
            places,
            addresses=self._probes.addresses,
            nonce=self._probes.nonce,
            host_name=crew.name,
            **asdict(self._job.plan),
        )

    def _usable(self, crews: Mapping[str, AgentCrew]) -> dict[str, AgentCrew]:
        """Those whose agents are there; all, or enough where hosts may come later.

        Raises:
            CannotStartError: If others are needed.
        """
        there = {name: crew for name, crew in crews.items() if crew.gone is None}
        lost = {
            crew.name: crew.gone for crew in crews.values() if crew.gone is not None
        }
        gone = [f"host {name}: {why}" for name, why in lost.items()]
        elastic = self._desk.options.elastic
        tenure = self._desk.options.tenure
        if tenure is not None and tenure.taken_over:
            least = 1  # Whether that is enough is found out as in a job that runs.
        elif elastic is None or elastic.discovery is None:
            least = sum(crew.slots for crew in crews.values())
        else:
            least = elastic.min_size
        slots = sum(crew.slots for crew in there.values())
        if slots < least:
            lacking = [f"there are {slots} slots, and {least} are needed"]
            raise CannotStartError("\nringrun: ".join(gone or lacking))
        for why in gone:
            self._desk.output.say(f"elastic: {why}")
        return there


def names_of(host: Host) -> tuple[str | None, str]:
    """As ssh takes it, which is None for this host; as messages call it."""
    user, at, name = host.name.rpartition("@")
    own = not (user or at) and is_own(name)
    return None if own else host.name, name


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


def _await_ready(desk: Desk, crews: Collection[AgentCrew]) -> None:
    """Until each agent can start ranks, or is gone because it cannot."""

    def settled(crew: AgentCrew) -> bool:
        return crew.reached is not None or crew.gone is not None

    desk.run_until(lambda: all(map(settled, crews)), _READY_TIMEOUT_S)
    for crew in crews:
        if not settled(crew):
            crew.line.lose(f"it did not get ready within {_READY_TIMEOUT_S:g} s")


def _note_differences(crews: Collection[AgentCrew]) -> None:
    """Says what may be meant, but seldom is."""
    for key, title in (("python", "Python"), ("tensorflow", "TensorFlow")):
        found = {crew.name: str((crew.line.hello or {}).get(key)) for crew in crews}
        if len(set(found.values())) > 1:
            each = ", ".join(
                f"{name}: {value or 'none'}" for name, value in found.items()
            )
            say(f"the hosts' versions of {title} differ: {each}")
