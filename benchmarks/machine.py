"""What the figures were taken on, and what else ran there."""

from __future__ import annotations

import datetime
import os
import platform
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Load", "describe_machine", "usable_cores"]


def usable_cores() -> list[int]:
    """The cores that this process may use."""
    return sorted(os.sched_getaffinity(0))


def describe_machine() -> dict[str, str]:
    """Date, hardware and the settings that move the figures."""
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(" ", "seconds"),
        "processor": _processor(),
        "cores": ",".join(map(str, usable_cores())),
        "kernel": platform.release(),
        "huge pages": _chosen("/sys/kernel/mm/transparent_hugepage/enabled"),
        "huge pages of shared memory": _chosen(
            "/sys/kernel/mm/transparent_hugepage/shmem_enabled"
        ),
        "TCP congestion control": _read("/proc/sys/net/ipv4/tcp_congestion_control"),
    }


@dataclass(frozen=True)
class Load:
    """What the machine did, in ticks since it started, and how long its queue is."""

    stolen: int
    total: int
    average: float

    @classmethod
    def now(cls) -> Load:
        """As it is."""
        ticks = [int(word) for word in _read("/proc/stat").splitlines()[0].split()[1:9]]
        return cls(stolen=ticks[7], total=sum(ticks), average=os.getloadavg()[0])

    def stolen_since(self, earlier: Load) -> float:
        """The part of the time that the hypervisor gave to others."""
        return (self.stolen - earlier.stolen) / max(1, self.total - earlier.total)


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return "unknown"


def _chosen(path: str) -> str:
    text = _read(path)
    return text[text.find("[") + 1 : text.find("]")] if "[" in text else text


def _processor() -> str:
    for line in _read("/proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown"
