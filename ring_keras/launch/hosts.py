"""The hosts of a job and how many ranks each takes: options, files, and filling."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "Host",
    "HostsError",
    "checked_host",
    "fill",
    "merge",
    "parse_hosts",
    "parse_lines",
    "read_hostfile",
]

# What ssh takes: a name, an address, either with a user. A leading dash would be
# one of its options.
_NAME = re.compile(r"[\w:][\w.:%@-]*", re.ASCII)
# Around an IPv6 address, which a port needs and ssh does not take.
_BRACKETS = re.compile(r"(^|@)\[([^\[\]]*)\]$")
# More digits are a mistake; Python reads no more than 4,300.
_SLOTS = re.compile(r"0*[1-9]\d{0,8}", re.ASCII)

# Of a line of a hostfile, what may follow the name: Open MPI's words.
_SLOT_WORDS = ("slots", "count", "cpu")
_OTHER_WORDS = ("max_slots", "max-slots")


class HostsError(ValueError):
    """What should name hosts does not."""


@dataclass(frozen=True)
class Host:
    """A machine that takes ranks.

    Attributes:
        name: How ssh reaches it; `user@name` works too.
        slots: How many ranks it takes, at least 1.
    """

    name: str
    slots: int


def parse_hosts(text: str) -> list[Host]:
    """Reads `a:4,b:4`; a host without a number has one slot.

    A host that comes again adds its slots to the first. An IPv6 address with
    slots stands in brackets: `[2001:db8::7]:4`.

    Raises:
        HostsError: If an entry is something else.
    """
    return merge(_parse_entry(entry.strip()) for entry in text.split(","))


def read_hostfile(path: Path) -> list[Host]:
    """Reads a file with a host on each line: `a slots=4`, `a:4`, or `a`.

    Empty lines and what follows a `#` do not count. A host that comes again adds
    its slots to the first. Open MPI's `max_slots=` is checked, and no more.

    Raises:
        HostsError: If the file cannot be read, or names no host. Says which line
            is wrong.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not text"
        raise HostsError(f"{path}: {reason}") from None
    hosts = parse_lines(lines, str(path))
    if not hosts:
        raise HostsError(f"{path}: names no host")
    return hosts


def parse_lines(
    lines: Iterable[str], source: str, default_slots: int = 1
) -> list[Host]:
    """Reads what a hostfile has.

    Args:
        lines: They may name no host.
        source: For messages.
        default_slots: Of a host that is named without.

    Raises:
        HostsError: Says which line is wrong.
    """
    hosts = []
    for number, line in enumerate(lines, start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            hosts.append(_parse_words(words, default_slots))
        except HostsError as error:
            raise HostsError(f"{source}, line {number}: {error}") from None
    return merge(hosts)


def checked_host(name: str, slots: str) -> Host:
    """A host, of the words that say so.

    Raises:
        HostsError: If one of them is something else.
    """
    return Host(_name(name), _slots(slots, f"{name} {slots}"))


def merge(hosts: Iterable[Host]) -> list[Host]:
    """One entry per name, where the name came first, with all of its slots."""
    slots: dict[str, int] = {}
    for host in hosts:
        slots[host.name] = slots.get(host.name, 0) + host.slots
    return [Host(name, count) for name, count in slots.items()]


def fill(hosts: Sequence[Host], size: int) -> list[Host]:
    """The hosts that `size` ranks take, in order, with `slots` of their ranks.

    Each host takes as many as it has slots for before the next takes any; a host
    that gets none is left out.

    Raises:
        HostsError: If there are not so many slots.
    """
    filled = []
    left = size
    for host in hosts:
        if left:
            filled.append(Host(host.name, min(left, host.slots)))
            left -= filled[-1].slots
    if left:
        offers = ", ".join(f"{host.name}:{host.slots}" for host in hosts)
        raise HostsError(
            f"{size} ranks need as many slots, and there are {size - left}: {offers}"
        )
    return filled


def _parse_words(words: Sequence[str], default_slots: int) -> Host:
    if len(words) == 1:
        return _parse_entry(words[0], default_slots)
    slots = default_slots
    for word in words[1:]:
        name, equals, value = word.partition("=")
        if not equals or name not in _SLOT_WORDS + _OTHER_WORDS:
            raise HostsError(
                f"expected `host`, `host:4` or `host slots=4`, not {' '.join(words)!r}"
            )
        count = _slots(value, word)
        if name in _SLOT_WORDS:
            slots = count
    return Host(_name(words[0]), slots)


def _parse_entry(entry: str, default_slots: int = 1) -> Host:
    name, colon, slots = entry.rpartition(":")
    # More than one colon outside of brackets: an IPv6 address without slots.
    if not colon or (":" in name and not name.endswith("]")):
        return Host(_name(entry), default_slots)
    return Host(_name(name), _slots(slots, entry))


def _name(text: str) -> str:
    name = _BRACKETS.sub(r"\1\2", text)
    if not _NAME.fullmatch(name):
        raise HostsError(f"expected a host, or HOST:SLOTS, not {text!r}")
    return name


def _slots(text: str, entry: str) -> int:
    if not _SLOTS.fullmatch(text):
        raise HostsError(f"slots must be an integer of at least 1, not {entry!r}")
    return int(text)
