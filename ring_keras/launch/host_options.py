"""ringrun's options that say on which hosts ranks run."""

from __future__ import annotations

import argparse
import dataclasses
import shlex
from collections.abc import Sequence
from pathlib import Path

from ring_keras.launch.addresses import is_own
from ring_keras.launch.hosts import Host, HostsError, fill, parse_hosts, read_hostfile
from ring_keras.launch.ssh import SshOptions

__all__ = ["add_options", "check_hosts", "ssh_options"]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds them in a group of their own."""
    group = parser.add_argument_group(
        "several hosts",
        "Through ssh, as you have configured it: `ssh HOST true` must work without a "
        "question. ring_keras must be installed, in the same version, on each host.",
    )
    hosts = group.add_mutually_exclusive_group()
    hosts.add_argument(
        "-H",
        "--hosts",
        metavar="HOST:SLOTS,...",
        help="hosts, and how many ranks each takes, filled in this order; without "
        "-np, all slots get a rank",
    )
    hosts.add_argument(
        "-hostfile",
        "--hostfile",
        type=Path,
        metavar="FILE",
        help="the same in a file, a line each: `HOST slots=4`, `HOST:4` or `HOST`",
    )
    group.add_argument(
        "-p", "--ssh-port", type=int, metavar="PORT", help="where sshd listens"
    )
    group.add_argument(
        "-i", "--ssh-identity-file", metavar="FILE", help="your key for ssh"
    )
    group.add_argument(
        "--ssh-args",
        default="",
        metavar="ARGUMENTS",
        help="more arguments for ssh, in one word: --ssh-args='-J gateway'",
    )
    group.add_argument(
        "--remote-python",
        metavar="PATH",
        help="Python on the other hosts (default: the path of ringrun's own)",
    )
    group.add_argument(
        "--launcher-address",
        metavar="ADDRESS",
        help="this host's address that the others shall connect to (default: the "
        "first that all reach)",
    )


def check_hosts(
    parser: argparse.ArgumentParser, options: argparse.Namespace
) -> list[Host] | None:
    """The hosts, with a slot for each rank they get; None: this host alone.

    Sets `options.size` where only the hosts say how many ranks there are.
    """
    option = "-H" if options.hosts is not None else "--hostfile"
    try:
        if options.hosts is not None:
            hosts = parse_hosts(options.hosts)
        elif options.hostfile is not None:
            hosts = read_hostfile(options.hostfile)
        else:
            return None
        if options.size is None:
            options.size = sum(host.slots for host in hosts)
        hosts = fill(hosts, options.size)
    except HostsError as error:
        parser.error(f"{option}: {error}")
    return None if _all_here(hosts) else hosts


def ssh_options(options: argparse.Namespace) -> SshOptions:
    """How the other hosts' agents are started."""
    chosen = SshOptions(
        arguments=shlex.split(options.ssh_args),
        port=options.ssh_port,
        identity_file=options.ssh_identity_file,
    )
    if options.remote_python is not None:
        chosen = dataclasses.replace(chosen, python=options.remote_python)
    return chosen


def _all_here(hosts: Sequence[Host]) -> bool:
    return all(is_own(host.name) for host in hosts)
