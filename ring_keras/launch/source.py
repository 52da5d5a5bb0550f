"""Where the hosts of a job come from."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from ring_keras.launch.crew import Crew
from ring_keras.launch.desk import Desk
from ring_keras.launch.fleet import Growth
from ring_keras.launch.local_crew import HostJob
from ring_keras.launch.places import places_of

__all__ = ["LOOPBACK", "Hosts", "Source", "this_host"]

LOOPBACK = "127.0.0.1"
"""Where the store of a job of one host listens."""


@dataclass(frozen=True)
class Hosts:
    """Those that a job begins with, which are ready to start ranks.

    Attributes:
        crews: Theirs, by how messages call the hosts; with their places, should all
            ranks be there from the start.
        store_host: The address on which the job's store shall listen.
        growth: What brings others later; None: nothing does.
        cut_off: How messages call others, whose agents may have ranks yet.
    """

    crews: Mapping[str, Crew]
    store_host: str
    growth: Growth | None = None
    cut_off: Collection[str] = ()


# Gathers them, and adds their crews to the desk's; raises CannotStartError.
Source = Callable[[Desk], Hosts]


def this_host(size: int, job: HostJob, slots: int | None = None) -> Source:
    """This host alone, whose ranks are children of the launcher.

    Args:
        size: How many there are at first.
        job: What they run.
        slots: How many there may be at a time; None: any number.
    """

    def gather(desk: Desk) -> Hosts:
        crew = desk.local_crew(sys.maxsize if slots is None else slots, job)
        crew.places = places_of([size])[0]
        return Hosts({crew.title: crew}, LOOPBACK)

    return gather
