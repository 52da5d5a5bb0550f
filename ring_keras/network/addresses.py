"""This host's own addresses."""

from __future__ import annotations

import contextlib
import ctypes
import ipaddress
import socket

__all__ = ["is_own", "own_addresses"]

# Bridges of containers and virtual machines: other hosts have the same.
_INNER_INTERFACES = ("docker", "virbr", "lxcbr", "lxdbr", "cni")

_IFF_UP = 1
_IFF_LOOPBACK = 8


class _Interface(ctypes.Structure):
    """`struct ifaddrs`, as far as it is used."""


_Interface._fields_ = [
    ("next", ctypes.POINTER(_Interface)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.POINTER(ctypes.c_ubyte)),
]

# Where the bytes of an address are, in `sockaddr_in` and `sockaddr_in6`.
_PLACE: dict[int, slice] = {socket.AF_INET: slice(4, 8), socket.AF_INET6: slice(8, 24)}


def own_addresses() -> list[str]:
    """Addresses of this host that others may reach: IPv4 first, then IPv6.

    Neither loopback nor link-local ones, nor those of containers' bridges.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    first = ctypes.POINTER(_Interface)()
    if libc.getifaddrs(ctypes.byref(first)) != 0:
        raise OSError(ctypes.get_errno(), "getifaddrs")
    found = []
    try:
        at = first
        while at:
            address = _address(at.contents)
            if address is not None and str(address) not in found:
                found.append(str(address))
            at = at.contents.next
    finally:
        libc.freeifaddrs(first)
    return sorted(found, key=lambda address: ":" in address)


def _address(
    interface: _Interface,
) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    usable = interface.flags & (_IFF_UP | _IFF_LOOPBACK) == _IFF_UP
    name = interface.name.decode()
    if not usable or not interface.address or name.startswith(_INNER_INTERFACES):
        return None
    # The family is the first field of every kind of address.
    family = int.from_bytes(bytes(interface.address[0:2]), "little")
    if family not in _PLACE:
        return None
    address = ipaddress.ip_address(bytes(interface.address[_PLACE[family]]))
    return None if address.is_link_local else address


def is_own(name: str) -> bool:
    """Whether a host's name or address means this host."""
    if name == socket.gethostname():
        return True
    with contextlib.suppress(OSError, UnicodeError):
        for family, kind, _, _, address in socket.getaddrinfo(
            name, 0, type=socket.SOCK_STREAM
        ):
            # Only a host's own addresses can be bound.
            with contextlib.suppress(OSError), socket.socket(family, kind) as probe:
                probe.bind(address)
                return True
    return False
