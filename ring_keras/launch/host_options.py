"""ringrun's options that say on which hosts ranks run."""

from __future__ import annotations

import argparse
import dataclasses
import shlex
import shutil
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

from ring_keras.config import (
    ConfigError,
    inherited_environment,
    read_token,
    scheduled_rank,
    split_address,
)
from ring_keras.launch.allocations import Allocation, allocation
from ring_keras.launch.card import Card
from ring_keras.launch.discovery import DiscoveryOptions, first_hosts
from ring_keras.launch.elastic_options import ELASTIC_TIMEOUT_S, discovery_of
from ring_keras.launch.hosts import Host, HostsError, fill, parse_hosts, read_hostfile
from ring_keras.launch.nodes import NodeOptions
from ring_keras.launch.output import say
from ring_keras.launch.rank_counts import (
    add_spellings,
    choose_ranks_here,
    count_here,
)
from ring_keras.launch.ssh import SshOptions
from ring_keras.network.addresses import is_own

__all__ = ["add_options", "check_hosts", "check_nodes", "ssh_options"]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds them in a group of their own."""
    group = parser.add_argument_group(
        "several hosts",
        "ringrun reaches the hosts by ssh, as you have configured it: `ssh HOST true` "
        "must not ask anything. Each host must have the same version of ring_keras.",
    )
    hosts = group.add_mutually_exclusive_group()
    hosts.add_argument(
        "-H",
        "--hosts",
        metavar="HOST:SLOTS,...",
        help="hosts, and how many ranks each takes. They are filled in this order. "
        "Without -np, each slot gets a rank",
    )
    hosts.add_argument(
        "-hostfile",
        "--hostfile",
        type=Path,
        metavar="FILE",
        help="the same in a file, one host a line: `HOST slots=4`, `HOST:4` or `HOST`",
    )
    group.add_argument(
        "-p", "--ssh-port", type=int, metavar="PORT", help="the port of sshd"
    )
    group.add_argument(
        "-i", "--ssh-identity-file", metavar="FILE", help="your key for ssh"
    )
    group.add_argument(
        "--ssh-args",
        default="",
        metavar="ARGUMENTS",
        help="more arguments for ssh, as one word: --ssh-args='-J gateway'",
    )
    group.add_argument(
        "--remote-python",
        metavar="PATH",
        help="Python on the other hosts (default: the path of ringrun's own)",
    )
    group.add_argument(
        "--remote-shell",
        metavar="COMMAND",
        help="a command to use in place of ssh, as one word. It gets a host's name and "
        "the command to run there, to which it must pass its standard input: "
        "--remote-shell='docker exec -i'",
    )
    group.add_argument(
        "--agent-port",
        type=int,
        metavar="PORT",
        help="use no ssh: an agent on each other host must listen on this port, and "
        "have the same --secret-file: python -m ring_keras.launch.listening_agent "
        "--help",
    )
    group.add_argument(
        "--launcher-address",
        metavar="ADDRESS",
        help="the address of this host to which the others connect (default: the first "
        "that all of them reach)",
    )
    _add_node_options(parser)
    # What a scheduler gives, where that is used.
    parser.set_defaults(allocation=None, slots_here=None)


def _add_node_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "several hosts, without ssh",
        "Run the same command on every host, each with its own --node-rank. Every host "
        "has the job's secret in a file of mode 0600.",
    )
    group.add_argument("--nnodes", type=int, metavar="N", help="number of hosts")
    group.add_argument(
        "--node-rank", type=int, metavar="K", help="this host's number, from 0"
    )
    group.add_argument(
        "--nproc-per-node",
        type=count_here,
        metavar="N",
        help="number of ranks on this host, or auto; hosts may differ. Without "
        "--nnodes, the same as -np",
    )
    group.add_argument(
        "--rendezvous",
        metavar="HOST:PORT",
        help="an address of node 0, and a free port on it",
    )
    group.add_argument(
        "--secret-file",
        metavar="FILE",
        help="64 hexadecimal digits: (umask 077; openssl rand -hex 32 > FILE)",
    )
    add_spellings(group)


def check_nodes(
    parser: argparse.ArgumentParser, options: argparse.Namespace
) -> NodeOptions | None:
    """This host among those that run the same command; None: there are none.

    Sets `options.size` to the number of ranks on this host.
    """
    given = {
        "--nnodes": options.nnodes,
        "--node-rank": options.node_rank,
        "--nproc-per-node": options.nproc_per_node,
        "--rendezvous": options.rendezvous,
        "--secret-file": options.secret_file,
    }
    missing = [name for name, value in given.items() if value is None]
    if len(missing) == len(given):
        return None
    if options.agent_port is not None and len(missing) == len(given) - 1:
        return None  # The secret is for agents that wait.
    if missing:
        parser.error(f"hosts without ssh also need {', '.join(missing)}")
    for name, value in (
        ("-np", options.size),
        ("-H", options.hosts),
        ("--hostfile", options.hostfile),
    ):
        if value is not None:
            parser.error(
                f"{name} is not for hosts without ssh: --nproc-per-node says it"
            )
    for name in _given_for_other_hosts(options):
        parser.error(f"{name} is for hosts that are reached through ssh: -H")
    if not 0 <= options.node_rank < options.nnodes:
        parser.error(
            f"--node-rank must be from 0 to {options.nnodes - 1} with --nnodes "
            f"{options.nnodes}, not {options.node_rank}"
        )
    try:
        host, port = split_address(options.rendezvous)
        token = read_token(options.secret_file, "--secret-file")
    except ConfigError as error:
        parser.error(str(error))
    except ValueError:
        parser.error(f"--rendezvous must be HOST:PORT, not {options.rendezvous}")
    options.size = options.nproc_per_node
    return NodeOptions(
        count=options.nnodes,
        rank=options.node_rank,
        ranks=options.nproc_per_node,
        host=host,
        port=port,
        token=token,
    )


def check_hosts(
    parser: argparse.ArgumentParser, options: argparse.Namespace
) -> list[Host] | None:
    """The hosts, with a slot for each rank they may get; None: this host alone.

    Where no option names hosts, they are those of the job that a scheduler has given
    us. Sets `options.size` where only the hosts say how many ranks there are.
    """
    option = "-H" if options.hosts is not None else "--hostfile"
    discovery = discovery_of(options)
    if options.agent_port is not None:
        _check_waiting_agents(parser, options)
    if options.remote_shell is not None:
        _check_remote_shell(parser, options)
    try:
        if discovery is not None:
            option = "--host-discovery-script"
            return _discovered(options, discovery)
        if options.tenure is not None:
            return _taken_over(options)
        if options.hosts is not None:
            hosts = parse_hosts(options.hosts)
        elif options.hostfile is not None:
            hosts = read_hostfile(options.hostfile)
        else:
            given = _allocation(parser, options)
            if given is None:
                _refuse_for_other_hosts(parser, options)
                if options.is_auto:
                    options.size = choose_ranks_here()
                return None
            option, hosts = given.source, list(given.hosts)
        if options.size is None:
            options.size = sum(host.slots for host in hosts)
        filled = fill(hosts, options.size)
        # Those that are left over are for ranks that come later.
        hosts = filled if options.max_size is None else hosts
    except HostsError as error:
        parser.error(f"[RK811] {option}: {error}")
    if not _all_here(hosts):
        return hosts
    if options.max_size is not None:
        options.slots_here = sum(host.slots for host in hosts)
    return None


def _taken_over(options: argparse.Namespace) -> list[Host] | None:
    """Those that have ranks, with the slots that they had, and others of the list."""
    card: Card = options.tenure.card
    have = {agent.listed_as: agent.slots for agent in card.agents}
    listed: list[Host] = []
    try:
        if options.hosts is not None:
            listed = parse_hosts(options.hosts)
        elif options.hostfile is not None:
            listed = read_hostfile(options.hostfile)
    except HostsError as error:
        say(f"--hostfile: {error}; the job goes on, on the hosts that have its ranks")
    slots = {host.name: host.slots for host in listed} | have
    if options.size is None:
        options.size = max(1, sum(slots.values()))
    hosts = [Host(name, count) for name, count in slots.items()]
    return None if _all_here(hosts) else hosts


def _given_for_other_hosts(options: argparse.Namespace) -> Iterator[str]:
    """Options that say how other hosts are reached."""
    for name, value in (
        ("-p", options.ssh_port),
        ("-i", options.ssh_identity_file),
        ("--ssh-args", options.ssh_args or None),
        ("--remote-python", options.remote_python),
        ("--remote-shell", options.remote_shell),
        ("--agent-port", options.agent_port),
        ("--launcher-address", options.launcher_address),
    ):
        if value is not None:
            yield name


def _refuse_for_other_hosts(
    parser: argparse.ArgumentParser, options: argparse.Namespace
) -> None:
    for name in _given_for_other_hosts(options):
        parser.error(
            f"{name} is for other hosts, and no option names any: -H, --hostfile or "
            "--host-discovery-script"
        )


def _check_waiting_agents(
    parser: argparse.ArgumentParser, options: argparse.Namespace
) -> None:
    if not 1 <= options.agent_port <= 65535:
        parser.error(f"--agent-port must be from 1 to 65535, not {options.agent_port}")
    if not any((options.hosts, options.hostfile, options.host_discovery_script)):
        parser.error("--agent-port needs -H, --hostfile or --host-discovery-script")
    if options.secret_file is None:
        parser.error("--agent-port also needs --secret-file")
    for name in _given_for_other_hosts(options):
        if name not in ("--agent-port", "--launcher-address"):
            parser.error(f"{name} is for agents that ringrun starts, not --agent-port")
    try:
        read_token(options.secret_file, "--secret-file")
    except ConfigError as error:
        parser.error(str(error))


def _check_remote_shell(
    parser: argparse.ArgumentParser, options: argparse.Namespace
) -> None:
    try:
        words = shlex.split(options.remote_shell)
    except ValueError as error:
        parser.error(f"--remote-shell: {error}")
    if not words or shutil.which(words[0]) is None:
        parser.error(f"--remote-shell: there is no command {options.remote_shell!r}")
    if not any((options.hosts, options.hostfile, options.host_discovery_script)):
        parser.error("--remote-shell needs -H, --hostfile or --host-discovery-script")
    for name, value in (
        ("-p", options.ssh_port),
        ("-i", options.ssh_identity_file),
        ("--ssh-args", options.ssh_args or None),
    ):
        if value is not None:
            parser.error(f"{name} is for ssh, and --remote-shell takes its place")


def _discovered(options: argparse.Namespace, discovery: DiscoveryOptions) -> list[Host]:
    """The hosts to begin with; as many ranks as they have slots for, up to `-np`."""
    if options.hosts is not None or options.hostfile is not None:
        raise HostsError("leave out -H and --hostfile: the script names the hosts")
    if options.min_size is None or options.max_size is None:
        raise HostsError("give --min-np and --max-np, too")
    if options.slots_per_host is not None and options.slots_per_host < 1:
        raise HostsError(
            f"--slots-per-host must be 1 or more: {options.slots_per_host}"
        )
    if options.tenure is not None:
        # The card names those that are there, and the script soon others.
        options.size = options.size or options.min_size
        return []
    timeout_s = options.elastic_timeout or ELASTIC_TIMEOUT_S
    try:
        hosts = first_hosts(discovery, options.min_size, timeout_s)
    except KeyboardInterrupt:
        raise SystemExit(128 + signal.SIGINT) from None
    most = options.size or options.max_size
    options.size = min(most, sum(host.slots for host in hosts))
    return hosts


def _allocation(
    parser: argparse.ArgumentParser, options: argparse.Namespace
) -> Allocation | None:
    """What a scheduler lets us use; None if nothing, or if it does not matter."""
    environment = inherited_environment()
    try:
        given = allocation(environment)
        own = scheduled_rank(environment)
    except ConfigError as error:
        parser.error(str(error))
    several = own if own is not None and own.size > 1 else None
    # How many ranks one host can bear is for its user to say.
    own_size = options.size is not None
    is_ours = given is not None and len(given.hosts) == 1 and _all_here(given.hosts)
    if given is None or options.here_only or (own_size and is_ours):
        if several is not None:
            say(
                f"{several.starter} started {several.size} of this ringrun; each "
                "runs a job of its own"
            )
        return None
    if several is not None:
        parser.error(
            f"{several.starter} started {several.size} of this ringrun; each would "
            f"take all of {given.scheduler}'s job {given.job}. Start ringrun once, in "
            "the job's script, or start the training script itself in its place."
        )
    options.allocation = given
    return given


def ssh_options(options: argparse.Namespace) -> SshOptions:
    """How the other hosts' agents are started, or found."""
    if options.agent_port is not None:
        return SshOptions(
            waiting_port=options.agent_port, secret_file=options.secret_file
        )
    chosen = SshOptions(
        arguments=shlex.split(options.ssh_args),
        port=options.ssh_port,
        identity_file=options.ssh_identity_file,
    )
    if options.remote_shell is not None:
        chosen = SshOptions(instead=shlex.split(options.remote_shell))
    given: Allocation | None = options.allocation
    by_ssh = options.ssh_args or options.ssh_port or options.ssh_identity_file
    if given is not None and not by_ssh and not chosen.instead:
        starter = given.starter
        if starter and shutil.which(starter[0]) is not None:
            chosen = dataclasses.replace(chosen, instead=starter)
    if options.remote_python is not None:
        chosen = dataclasses.replace(chosen, python=options.remote_python)
    return chosen


def _all_here(hosts: Sequence[Host]) -> bool:
    return all(is_own(host.name) for host in hosts)
