"""Which faults there are, when they come, and the draw of some."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

DEADLY = ("SIGKILL", "SIGSEGV", "SIGABRT", "exit 0", "exit 3", "raises")
HARMLESS = ("SIGSTOP for a second", "a thread raises")
OUT_OF_MEMORY = "the OOM killer"
STORE_KILLED = "the store is killed"
LAUNCHER_KILLED = "the launcher is killed"
PROCESS_FAULTS = (
    *(*DEADLY, *HARMLESS, OUT_OF_MEMORY),
    *("SIGSTOP", "keeps Python's lock", STORE_KILLED),
)
BAD_LINKS = (
    "1 % of packets lost",
    "10 % of packets lost",
    "packets doubled",
    "packets reordered",
    "link cut for 2 s",
)
BROKEN_LINKS = ("link cut", "packets lost one way", "connections forgotten")
LINK_FAULTS = (*BAD_LINKS, *BROKEN_LINKS)
# An exit with code 0 says that a rank is done, and would end the job.
ELASTIC_FAULTS = (
    *("SIGKILL", "SIGSEGV", "SIGABRT", "exit 3"),
    *("raises", "SIGSTOP", LAUNCHER_KILLED),
)

AGENT_KILLED = "an agent is killed"
INHERITED = "the launcher is killed, and has heirs"
CUT_OFF = "a host is cut off"
HOST_FAULTS = (AGENT_KILLED, INHERITED, CUT_OFF)

CALLS = ("array", "eager", "graph", "jit")
AROUND_CALLS = ("before a collective", "in a collective", "in init")
FITS = ("fit", "fit with jit")
IN_FITS = ("before a step", "in a step", "in an evaluation", "while saving")
ELASTIC = "elastic fit"
IN_ELASTIC = (*IN_FITS, "while a generation forms")
# The same, with each rank on a host of its own.
ON_HOSTS = "elastic fit on hosts"

_SIZES = (2, 3, 4)
# Where a host is lost, more than half must be left.
HOSTS = 3
# Of all that are drawn; the others are of processes.
_LINK_SHARE = 0.35
_ELASTIC_SHARE = 0.15
_HOSTS_SHARE = 0.08


@dataclass(frozen=True)
class Case:
    """One fault.

    Attributes:
        fault: One of `PROCESS_FAULTS`, `LINK_FAULTS`, `ELASTIC_FAULTS` or
            `HOST_FAULTS`.
        place: One of `AROUND_CALLS`, `IN_FITS` or `IN_ELASTIC`.
        work: What the ranks do: one of `CALLS`, of `FITS`, `ELASTIC` or `ON_HOSTS`.
        size: How many ranks there are.
        victim: The rank that it comes to, or whose agent or host; of a launcher, the
            rank that kills it; of a link, the rank that is there, and whose packets
            are lost where only those are that go one way.
        transport: As `RING_KERAS_TRANSPORT`; "link": two hosts with one.
    """

    fault: str
    place: str
    work: str
    size: int
    victim: int
    transport: str

    def __str__(self) -> str:
        whose = f"rank {self.victim} of {self.size}"
        return f"{self.fault}, {self.place}, {self.work}, {whose}, {self.transport}"

    @property
    def host_of(self) -> list[int]:
        """Each rank's host, where there are two."""
        return [2 * rank // self.size for rank in range(self.size)]


def draw(count: int, seed: int) -> list[Case]:
    """Cases in random order, none twice."""
    places = [
        *itertools.product(AROUND_CALLS, CALLS),
        *itertools.product(IN_FITS, FITS),
    ]
    elastic = [(place, ELASTIC) for place in IN_ELASTIC]
    on_hosts = [(place, ON_HOSTS) for place in IN_ELASTIC]
    of_hosts = _cases(HOST_FAULTS, on_hosts, ("tcp",), (HOSTS,))
    links, elastics = round(_LINK_SHARE * count), round(_ELASTIC_SHARE * count)
    hosts = min(round(_HOSTS_SHARE * count), len(of_hosts))
    chance = random.Random(seed)
    drawn = [
        *chance.sample(
            _cases(PROCESS_FAULTS, places, ("auto", "tcp")),
            count - links - elastics - hosts,
        ),
        *chance.sample(_cases(LINK_FAULTS, places, ("link",)), links),
        *chance.sample(_cases(ELASTIC_FAULTS, elastic, ("auto", "tcp")), elastics),
        *chance.sample(of_hosts, hosts),
    ]
    chance.shuffle(drawn)
    return drawn


def _cases(
    faults: tuple[str, ...],
    places: list[tuple[str, str]],
    transports: tuple[str, ...],
    sizes: tuple[int, ...] = _SIZES,
) -> list[Case]:
    return [
        case
        for fault, (place, work), size, transport in itertools.product(
            faults, places, sizes, transports
        )
        for victim in range(size)
        if _can_be(case := Case(fault, place, work, size, victim, transport))
    ]


def _can_be(case: Case) -> bool:
    """Whether there is such a case."""
    if case.place == "while saving" and case.victim != 0:
        return False  # The first rank does that.
    if case.place == "while a generation forms" and case.size < 3:
        return False  # One more is lost before.
    if case.fault == CUT_OFF and case.place == "while a generation forms":
        return False  # The only one left would have to know that it is not cut off.
    if case.fault in (*LINK_FAULTS, *HOST_FAULTS):
        return True
    if case.place == "in init" and case.fault == "SIGSTOP":
        return False  # Until it has come, nobody can tell it from one that is slow.
    if case.place.startswith("in a ") or case.place in ("in init", IN_ELASTIC[-1]):
        # Where Python does not come by.
        return case.fault not in ("raises", "keeps Python's lock")
    return True
