"""Whether network cards that read memory by themselves may lock enough of it."""

from __future__ import annotations

import resource
from pathlib import Path

from ring_keras.launch.doctor.finding import Finding, State
from ring_keras.launch.doctor.host.fixes import raise_limit
from ring_keras.launch.doctor.job_shape import JobShape

__all__ = ["check"]

_CARDS = Path("/sys/class/infiniband")


def check(job: JobShape) -> list[Finding]:
    """RLIMIT_MEMLOCK, where there is InfiniBand or RoCE, which NCCL uses."""
    cards = sorted(path.name for path in _CARDS.iterdir()) if _CARDS.is_dir() else []
    if not cards:
        text = "there is no InfiniBand or RoCE card, and nothing else locks memory"
        return [Finding("locked memory", State.NOT_APPLICABLE, text)]
    hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
    named = ", ".join(cards)
    if hard == resource.RLIM_INFINITY:
        return [Finding("locked memory", State.OK, f"no limit, for {named}")]
    return [
        Finding(
            "locked memory",
            State.WARNING,
            f"up to {hard >> 10:,} KiB, with {named}",
            expected="no limit: NCCL registers its buffers with the card",
            fix=raise_limit("memlock", "unlimited", job),
            measured={"hard_limit_bytes": hard},
        )
    ]
