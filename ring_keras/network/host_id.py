"""What tells this host from others, whatever their names are."""

from __future__ import annotations

from pathlib import Path

__all__ = ["boot_id", "host_id"]


def boot_id() -> str:
    """Of this machine, since it was started; empty if it does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def host_id(name: str | None) -> str:
    """The same on two ranks that the engine takes for ranks of one host.

    As the engine has it (`tf_ops/runtime/peer_card.cc`): a container whose host name
    is its own is a host of its own.

    Args:
        name: What a launcher calls this host, if it does.
    """
    boot = boot_id()
    try:
        namespace = str(Path("/proc/self/ns/uts").readlink())
    except OSError:
        namespace = ""
    if name or not boot or not namespace:
        return f"{boot} {name or ''}"
    return f"{boot} {namespace}"
