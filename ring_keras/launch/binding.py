"""Which processors each rank of this machine gets.

A rank that keeps to its own cores keeps its caches, and its memory, shared memory
too, stays on the NUMA node that it runs on: pages lie where they are first written.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

__all__ = ["Processor", "allowed_processors", "share_out"]

_SYSTEM = Path("/sys/devices/system/cpu")


class Processor(NamedTuple):
    """A logical processor; they sort so that neighbours share the most."""

    node: int
    package: int
    core: int
    number: int


def allowed_processors() -> list[Processor]:
    """Those that this process may run on."""
    return sorted(_describe(number) for number in os.sched_getaffinity(0))


def share_out(processors: Sequence[Processor], ranks: int) -> list[tuple[int, ...]]:
    """The numbers of each rank's processors.

    Each gets as many, next to each other, none of them another's too; what cannot
    be divided stays idle. If ranks outnumber processors, each has one, and some
    share.

    Args:
        processors: In their order; at least one.
        ranks: How many ranks there are on this machine.
    """
    ordered = [processor.number for processor in processors]
    each = len(ordered) // ranks
    if each == 0:
        return [(ordered[rank * len(ordered) // ranks],) for rank in range(ranks)]
    return [tuple(ordered[rank * each : (rank + 1) * each]) for rank in range(ranks)]


def _describe(number: int) -> Processor:
    directory = _SYSTEM / f"cpu{number}"
    nodes = [
        int(found[1])
        for entry in (directory.iterdir() if directory.is_dir() else ())
        if (found := re.fullmatch(r"node(\d+)", entry.name))
    ]
    return Processor(
        node=min(nodes, default=0),
        package=_number_in(directory / "topology/physical_package_id"),
        core=_number_in(directory / "topology/core_id"),
        number=number,
    )


def _number_in(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # A sandbox may hide it.
        return 0
