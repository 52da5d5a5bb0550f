"""How fast bytes go between hosts, by what TCP says of each connection."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from statistics import median

__all__ = ["Link", "slow_links", "sums_of_links"]

# A link is slow that has less than this part of the others' speed.
_SLOW_PART = 0.5
# What carries less than this part of the busiest link's bytes is not what steps wait
# for: small messages are slow everywhere.
_CARRIES = 0.25


@dataclasses.dataclass(frozen=True)
class Link:
    """What went one way between two ranks in some span.

    Examples:
        Ranks of one host reach each other by shared memory, so there are none:

        >>> ring.stats().links
        ()

    Attributes:
        sender: The rank that sent.
        receiver: The rank that received.
        bytes: Acknowledged by the receiver's host.
        busy_s: Seconds in which some were under way.
    """

    sender: int
    receiver: int
    bytes: int
    busy_s: float

    @property
    def bandwidth(self) -> float:
        """Bytes per second while any were under way; 0 where none were."""
        return self.bytes / self.busy_s if self.busy_s > 0 else 0.0

    def minus(self, earlier: Link | None) -> Link:
        """What went since."""
        if earlier is None or earlier.bytes > self.bytes:  # A new connection.
            return self
        return dataclasses.replace(
            self,
            bytes=self.bytes - earlier.bytes,
            busy_s=max(self.busy_s - earlier.busy_s, 0.0),
        )


def slow_links(links: Iterable[Link]) -> list[tuple[Link, float]]:
    """Those that are much slower than most, the slowest first.

    Returns:
        Each with the bandwidth that the links have in the middle, in bytes/s.
    """
    links = tuple(links)
    least = _CARRIES * max((link.bytes for link in links), default=0)
    used = [link for link in links if link.bytes >= least and link.busy_s > 0]
    if len(used) < 2:
        return []
    usual = median(link.bandwidth for link in used)
    slow = [link for link in used if link.bandwidth < _SLOW_PART * usual]
    return [(link, usual) for link in sorted(slow, key=lambda link: link.bandwidth)]


def sums_of_links(links: Iterable[Link]) -> tuple[Link, ...]:
    """One for each two ranks, with what went between them in all."""
    sums: dict[tuple[int, int], Link] = {}
    for link in links:
        key = link.sender, link.receiver
        before = sums.get(key, Link(*key, 0, 0.0))
        sums[key] = Link(*key, before.bytes + link.bytes, before.busy_s + link.busy_s)
    return tuple(sums.values())
