"""Options of `ringrun` for jobs that outlive their ranks."""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import dataclass
from pathlib import Path

from ring_keras.config import Config
from ring_keras.launch.discovery import DiscoveryOptions

__all__ = [
    "ELASTIC_TIMEOUT_S",
    "ElasticOptions",
    "add_options",
    "check",
    "discovery_of",
]

ELASTIC_TIMEOUT_S = 600.0
_COOLDOWN_S = (1.0, 60.0)


@dataclass(frozen=True)
class ElasticOptions:
    """How many ranks a job may have, and how long it waits for some.

    Attributes:
        size: Ranks to begin with, if there is room for so many.
        min_size: The fewest with which it goes on.
        max_size: Up to so many are started, anew for those that were lost; None:
            none are.
        timeout_s: How long those that wait for others to join do so.
        reset_limit: After how many changes another one ends the job; None: never.
        cooldown_s: Until a lost process is replaced, at first and at most: the time
            doubles with each loss. The same for a host that is tried again.
        discovery: What names the hosts while the job runs; None: they are given.
    """

    size: int
    min_size: int
    max_size: int | None
    timeout_s: float
    reset_limit: int | None
    cooldown_s: tuple[float, float]
    discovery: DiscoveryOptions | None

    def cooldown_after_s(self, losses: int) -> float:
        """How long nobody takes the place of what was lost so many times, 1 or more."""
        first, last = self.cooldown_s
        return float(min(last, first * 2.0 ** min(losses - 1, 64)))

    @property
    def shared(self) -> str:
        """What every node must be given, as options; none where it is the default."""
        words = [f"--min-np {self.min_size}"]
        if self.max_size is not None:
            words.append(f"--max-np {self.max_size}")
        if self.timeout_s != ELASTIC_TIMEOUT_S:
            words.append(f"--elastic-timeout {self.timeout_s:g}")
        if self.reset_limit is not None:
            words.append(f"--reset-limit {self.reset_limit}")
        if self.cooldown_s != _COOLDOWN_S:
            first, last = self.cooldown_s
            words.append(f"--blacklist-cooldown-range {first:g} {last:g}")
        return " ".join(words)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds them to ringrun's."""
    group = parser.add_argument_group(
        "elastic jobs",
        "Jobs that continue when ranks are lost: see docs/elastic.md. "
        "With --nnodes, give the same ones on every host.",
    )
    add = group.add_argument
    add(
        "--min-np",
        "--min-num-proc",
        dest="min_size",
        type=int,
        metavar="M",
        help="keep training while at least M ranks are left",
    )
    add(
        "--max-np",
        "--max-num-proc",
        dest="max_size",
        type=int,
        metavar="N",
        help="start ranks until there are N, also in place of lost ones",
    )
    add(
        "--elastic-timeout",
        type=float,
        metavar="SECONDS",
        help="how long to wait for M ranks to meet after a change (default: 600)",
    )
    add(
        "--host-discovery-script",
        type=Path,
        metavar="FILE",
        help="a program that prints the available hosts, as lines of a hostfile. "
        "ringrun runs it about once a second. Needs --min-np and --max-np",
    )
    add(
        "--slots-per-host",
        "--slots",
        type=int,
        metavar="N",
        help="slots of a host that the discovery script prints without a number "
        "(default: 1)",
    )
    add(
        "--reset-limit",
        type=int,
        metavar="K",
        help="end the job at the next change of ranks after K changes (default: never)",
    )
    add(
        "--blacklist-cooldown-range",
        dest="cooldown_s",
        type=float,
        nargs=2,
        metavar=("MIN", "MAX"),
        help="seconds until a lost rank is replaced: MIN, doubled with each loss, up "
        "to MAX (default: {:g} {:g})".format(*_COOLDOWN_S),
    )


def discovery_of(options: argparse.Namespace) -> DiscoveryOptions | None:
    """What names the hosts while the job runs; None: nothing does."""
    if options.host_discovery_script is None:
        return None
    return DiscoveryOptions(
        options.host_discovery_script.absolute(), options.slots_per_host or 1
    )


def check(
    parser: argparse.ArgumentParser,
    options: argparse.Namespace,
    config: Config,
    *,
    by_node: bool,
) -> ElasticOptions | None:
    """What was asked for; None: nothing. Ends the process if it cannot be had.

    Args:
        parser: Tells the user.
        options: As parsed.
        config: What the ranks will be told.
        by_node: Whether each host has a ringrun of its own.
    """
    if options.min_size is None and options.max_size is None:
        for name in _OPTION:
            if getattr(options, name) is not None:
                parser.error(f"{_OPTION[name]} is for elastic jobs: give --min-np")
        return None
    _refuse_what_is_not_there(parser, options, config, by_node)
    # As Horovod's: without it, no fewer than it began with.
    least = options.size if options.min_size is None else options.min_size
    most, size = options.max_size, options.size
    if options.tenure is not None:
        # As many as there are were allowed when the job began.
        size = max(least, size if most is None else min(size, most))
    if by_node:
        size = sys.maxsize  # How many ranks the others have, they will say.
        if least < 1:
            parser.error(f"--min-np must be at least 1, not {least}")
    elif not 1 <= least <= size:
        parser.error(f"--min-np must be from 1 to -np {size}, not {least}")
    elif most is not None and most < size:
        parser.error(f"--max-np must be at least -np {size}, not {most}")
    if options.slots_per_host is not None and options.host_discovery_script is None:
        parser.error("--slots-per-host is for --host-discovery-script")
    timeout_s = options.elastic_timeout
    timeout_s = ELASTIC_TIMEOUT_S if timeout_s is None else timeout_s
    if not 0 < timeout_s < math.inf:
        parser.error(f"--elastic-timeout must be some seconds, not {timeout_s:g}")
    if options.reset_limit is not None and options.reset_limit < 0:
        parser.error(f"--reset-limit must be at least 0, not {options.reset_limit}")
    first, last = options.cooldown_s or _COOLDOWN_S
    if not 0 <= first <= last < math.inf:
        parser.error(
            "--blacklist-cooldown-range must be MIN and MAX seconds, and MIN the "
            f"smaller, not {first:g} {last:g}"
        )
    if options.cooldown_s is not None and most is None:
        parser.error(
            "--blacklist-cooldown-range says when lost ranks are replaced, and without "
            "--max-np they are not"
        )
    return ElasticOptions(
        size=size,
        min_size=least,
        max_size=most,
        timeout_s=timeout_s,
        reset_limit=options.reset_limit,
        cooldown_s=(first, last),
        discovery=discovery_of(options),
    )


_OPTION = {
    "elastic_timeout": "--elastic-timeout",
    "reset_limit": "--reset-limit",
    "cooldown_s": "--blacklist-cooldown-range",
    "slots_per_host": "--slots-per-host",
    "host_discovery_script": "--host-discovery-script",
    "card": "--card",
}


def _refuse_what_is_not_there(
    parser: argparse.ArgumentParser,
    options: argparse.Namespace,
    config: Config,
    by_node: bool,
) -> None:
    if by_node and options.min_size is None:
        parser.error("--max-np with --nnodes also needs --min-np")
    if by_node and options.host_discovery_script is not None:
        parser.error(
            "--host-discovery-script names hosts that come and go, and --nnodes counts "
            "those that are there from the start: leave out one of them"
        )
    if options.bind_to != "none":
        parser.error("--bind-to does not work with --min-np or --max-np, for now")
    if config.timeline is not None:
        parser.error(
            "--timeline, or RING_KERAS_TIMELINE, does not work with --min-np or "
            "--max-np, for now"
        )
