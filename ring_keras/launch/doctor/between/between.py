"""What a comparison of hosts has found."""

from __future__ import annotations

from dataclasses import dataclass

from ring_keras.launch.doctor.finding import Finding

__all__ = ["Between"]


@dataclass(frozen=True)
class Between:
    """A finding about several hosts.

    Attributes:
        hosts: Their names.
        finding: What was found.
    """

    hosts: tuple[str, ...]
    finding: Finding
