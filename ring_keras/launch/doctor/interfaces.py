"""What this host's interfaces say of themselves."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import socket
import struct
from pathlib import Path

__all__ = ["interface_of", "link_speed", "mtu_of"]

_SIOCGIFADDR = 0x8915
_NETWORKS = Path("/sys/class/net")


def interface_of(address: str) -> str:
    """The name of the interface that has it; empty if that is not found."""
    if ":" in address:
        wanted = ipaddress.IPv6Address(address).exploded.replace(":", "")
        with contextlib.suppress(OSError):
            for line in Path("/proc/net/if_inet6").read_text().splitlines():
                digits, *_, name = line.split()
                if digits == wanted:
                    return name
        return ""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                request = struct.pack("256s", name.encode())
                answer = fcntl.ioctl(asker.fileno(), _SIOCGIFADDR, request)
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    return ""


def mtu_of(interface: str) -> int:
    """0: it does not say."""
    return _number(interface, "mtu")


def link_speed(interface: str) -> float:
    """Bits in a second; 0: it does not say, or is no card, and says anything."""
    if not (_NETWORKS / interface / "device").exists():
        return 0
    return max(0, _number(interface, "speed")) * 1e6


def _number(interface: str, name: str) -> int:
    if interface:
        with contextlib.suppress(OSError, ValueError):
            return int((_NETWORKS / interface / name).read_text())
    return 0
