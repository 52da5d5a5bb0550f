"""Options of `ringrun` for jobs whose launcher may be lost."""

from __future__ import annotations

import argparse
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from ring_keras.config import inherited_environment, replace_environment
from ring_keras.launch.card import Card, CardError
from ring_keras.launch.environment import host_environment
from ring_keras.launch.given_options import given_options
from ring_keras.launch.hosts import Host
from ring_keras.launch.output import say
from ring_keras.launch.ssh import SshOptions
from ring_keras.launch.tenure import Tenure

__all__ = ["add_options", "check", "hosts_of", "taken_over"]

# What acts on whoever takes a job over, not on the job.
_BESIDE = {"take_over", "ends_job", "by_majority", "verbose"}
_LOOPBACK_NAME = "localhost"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds them to ringrun's."""
    group = parser.add_argument_group(
        "jobs whose launcher may be lost",
        "Elastic jobs whose ranks wait for another ringrun if this one is killed, or "
        "its host is lost: see docs/elastic.md.",
    )
    add = group.add_argument
    add(
        "--card",
        type=Path,
        metavar="FILE",
        help="with --min-np: keep in FILE, which is private, what another ringrun has "
        "to know to take the job over",
    )
    add(
        "--take-over",
        type=Path,
        metavar="FILE",
        help="go on with the job of that card, in place of the ringrun that has begun "
        "it. All options are those of the job, but for --end, --by-majority and -v",
    )
    add(
        "--end",
        dest="ends_job",
        action="store_true",
        help="with --take-over: end the job, as SIGTERM to its ringrun does",
    )
    add(
        "--heirs",
        dest="has_heirs",
        action="store_true",
        help="with --card: have the agents start another ringrun by themselves, some "
        "seconds after this one is lost, if they have more than half of the ranks",
    )
    add(
        "--by-majority",
        action="store_true",
        help="with --take-over: only if there is no other ringrun, and the agents that "
        "answer have more than half of the ranks, as those that --heirs starts",
    )
    parser.set_defaults(tenure=None)


def taken_over(
    parser: argparse.ArgumentParser,
    given: argparse.Namespace,
    arguments: Sequence[str] | None,
) -> argparse.Namespace | int:
    """The options of the job that shall be taken over; or an exit code, once said.

    From here on this process has the job's directory and environment.

    Args:
        parser: Tells the user.
        given: As parsed.
        arguments: From which; None: this process's.
    """
    path = given.take_over.absolute()
    if given.command or given.card is not None:
        parser.error("--take-over takes no command, and no --card: the card has both")
    named = given_options(parser, sys.argv[1:] if arguments is None else arguments)
    others = [word for name, word in named.items() if name not in _BESIDE]
    if others:
        parser.error(
            f"--take-over takes all options of the job from the card: leave out "
            f"{', '.join(others)}. Only --end, --by-majority and -v go beside it"
        )
    try:
        card = Card.read(path)
        os.chdir(card.directory)
    except (CardError, OSError) as error:
        say(f"[RK822] cannot take the job over: {error}")
        return 1
    replace_environment(host_environment(inherited_environment(), card.environment))
    options = parser.parse_args(card.arguments)
    if options.launcher_address is not None and not _is_here(options.launcher_address):
        options.launcher_address = None  # Of the host that is lost.
    options.verbose |= given.verbose
    wanted = Path(card.path)
    options.tenure = Tenure(
        card,
        wanted if os.access(wanted.parent, os.W_OK) else path,
        taken_over=True,
        ends_job=given.ends_job,
        by_majority=given.by_majority,
    )
    return options


def check(
    parser: argparse.ArgumentParser,
    options: argparse.Namespace,
    *,
    arguments: Sequence[str] | None,
    added: Mapping[str, str],
    hosts: Sequence[Host] | None,
    ssh: SshOptions,
    by_node: bool,
) -> Tenure | None:
    """What another launcher can take over; None: none can.

    Ends the process if that cannot be had.

    Args:
        parser: Tells the user.
        options: As parsed.
        arguments: From which; None: this process's.
        added: Variables that every launcher of the job must have.
        hosts: Of the job; None: this one alone.
        ssh: How agents are started there.
        by_node: Whether each host has a ringrun of its own.
    """
    tenure: Tenure | None = options.tenure
    if tenure is not None or options.card is None:
        if options.has_heirs and tenure is None:
            parser.error("--heirs also needs --card FILE, which they will have, too")
        return tenure
    if by_node:
        parser.error("--card does not work with --nnodes, for now: give -H")
    if ssh.instead:
        parser.error(
            "--card does not work where a scheduler, or --remote-shell, starts agents: "
            "they end with ringrun"
        )
    names = [host.name for host in hosts or ()]
    if _LOOPBACK_NAME in names:
        parser.error(
            f"--card: on other hosts, {_LOOPBACK_NAME} means another one. Name this "
            f"host as they do, in -H: {socket.gethostname()}"
        )
    path = options.card.absolute()
    if path.exists():
        parser.error(
            f"--card: there is {path} already, and its job may still have ranks. Go on "
            f"with them by --take-over {path}, or end them by --end beside it. If "
            "nothing is left of that job, remove the file"
        )
    given = sys.argv[1:] if arguments is None else arguments
    card = Card(
        arguments=_with_allocation(given, options, hosts),
        directory=str(Path.cwd()),
        environment={**inherited_environment(), **added},
        path=str(path),
        has_heirs=options.has_heirs,
    )
    try:
        card.write(path)  # It will be worth something once there are agents.
        path.unlink()
    except (CardError, OSError) as error:
        parser.error(f"--card {error}")
    return Tenure(card, path, taken_over=False)


def _with_allocation(
    given: Sequence[str], options: argparse.Namespace, hosts: Sequence[Host] | None
) -> list[str]:
    """The command line, and what a scheduler has said; none need ask it again.

    In front of the command, and behind what it stands for, such as `-np auto`.
    """
    place = len(given) - len(options.command)
    if given[place - 1 : place] == ["--"]:
        place -= 1
    return [*given[:place], *_from_scheduler(options, hosts), *given[place:]]


def _from_scheduler(
    options: argparse.Namespace, hosts: Sequence[Host] | None
) -> list[str]:
    """Options that say what no option has said, or `auto`."""
    if options.allocation is None:
        return []
    if hosts is None:
        return ["-np", str(options.size)]
    names = (f"[{h.name}]" if ":" in h.name else h.name for h in hosts)
    slots = (f"{name}:{host.slots}" for name, host in zip(names, hosts, strict=True))
    return ["-H", ",".join(slots)]


def _is_here(address: str) -> bool:
    """Whether a server of this host's can have it."""
    try:
        family, kind, _, _, found = socket.getaddrinfo(
            address, 0, type=socket.SOCK_STREAM
        )[0]
        with socket.socket(family, kind) as server:
            server.bind(found)
    except OSError:
        return False
    return True


def hosts_of(options: argparse.Namespace) -> list[Host]:
    """This host alone, with an agent, so that its ranks can outlive the launcher.

    Of a job that was taken over, the host that it was on, as the job calls it.
    """
    tenure: Tenure | None = options.tenure
    if tenure is not None and tenure.taken_over and tenure.card.agents:
        return [Host(one.listed_as, one.slots) for one in tenure.card.agents]
    slots = options.slots_here or max(options.size, options.max_size or 0)
    return [Host(socket.gethostname(), slots)]
