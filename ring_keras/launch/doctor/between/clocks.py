"""Whether the hosts' clocks agree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ring_keras.launch.doctor.finding import Between, Finding, State

__all__ = ["Offset", "compare"]

# Well above what NTP keeps to, and below what anybody would misread in a log.
_TOLERATED_S = 0.1


@dataclass(frozen=True)
class Offset:
    """How far a host's clock is ahead of ringrun's own.

    Attributes:
        seconds: Negative if it is behind.
        uncertainty_s: Half of the round trip in which it was asked.
    """

    seconds: float
    uncertainty_s: float


def compare(offsets: Mapping[str, Offset]) -> list[Between]:
    """Each host's clock against the first host's."""
    hosts = tuple(offsets)
    first = offsets[hosts[0]]
    largest, uncertainty_s = 0.0, 0.0
    found = []
    for host in hosts[1:]:
        ahead_s = offsets[host].seconds - first.seconds
        doubt_s = offsets[host].uncertainty_s + first.uncertainty_s
        largest = max(largest, abs(ahead_s))
        uncertainty_s = max(uncertainty_s, doubt_s)
        if abs(ahead_s) - doubt_s <= _TOLERATED_S:
            continue
        word = "ahead of" if ahead_s > 0 else "behind"
        finding = Finding(
            "clocks",
            State.WARNING,
            f"{host} is {abs(ahead_s):.3f} s {word} {hosts[0]} "
            f"(+- {1000 * doubt_s:.0f} ms), so times in logs cannot be compared",
            expected=f"within {_TOLERATED_S:g} s, as chrony keeps it",
            fix=f"ssh {host} sudo chronyc makestep",
            measured={"ahead_s": ahead_s, "uncertainty_s": doubt_s},
        )
        found.append(Between((hosts[0], host), finding))
    if found:
        return found
    text = f"within {1000 * largest:.1f} ms (+- {1000 * uncertainty_s:.1f} ms)"
    measured = {"largest_s": largest, "uncertainty_s": uncertainty_s}
    return [Between(hosts, Finding("clocks", State.OK, text, measured=measured))]
