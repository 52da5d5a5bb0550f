"""Which of this host's addresses the others reach."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import ipaddress
import secrets
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from ring_keras.launch.loop import Loop

__all__ = ["Probes", "is_own", "own_addresses", "reached_addresses"]

# Bridges of containers and virtual machines: other hosts have the same.
_INNER_INTERFACES = ("docker", "virbr", "lxcbr", "lxdbr", "cni")

# Within a site a connection takes milliseconds; a firewall may say nothing.
_CONNECT_TIMEOUT_S = 3.0

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


class Probes:
    """Listens on addresses, until `close`, so that other hosts can try them.

    Says a number to whoever connects, and nothing else, so that they know whether
    it is this host that answers. Who may join the job is for the store to find out.

    Args:
        loop: Calls back.
        addresses: Of this host.

    Raises:
        OSError: If none can be listened on.
    """

    def __init__(self, loop: Loop, addresses: Sequence[str]) -> None:
        self.nonce = secrets.token_hex(16)
        self._loop = loop
        self._listeners: list[socket.socket] = []
        problem = OSError("this host has no address but loopback")
        for address in addresses:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            try:
                listener = socket.create_server((address, 0), family=family)
            except OSError as error:
                problem = OSError(error.errno, f"{address}: {error.strerror}")
                continue
            listener.setblocking(False)
            loop.on_readable(
                listener.fileno(), functools.partial(self._answer, listener)
            )
            self._listeners.append(listener)
        if not self._listeners:
            raise problem

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Host and port of each."""
        return [listener.getsockname()[:2] for listener in self._listeners]

    def close(self) -> None:
        """Ends it."""
        for listener in self._listeners:
            self._loop.forget(listener.fileno())
            listener.close()

    def _answer(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            peer, _ = listener.accept()
            with peer:
                peer.setblocking(False)
                peer.send(self.nonce.encode())


def reached_addresses(addresses: Sequence[Sequence[object]], nonce: str) -> list[str]:
    """Those addresses, of a host and port each, at which a `Probes` answers."""
    if not addresses:
        return []

    def reached(address: Sequence[object]) -> bool:
        host, port = str(address[0]), int(str(address[1]))
        try:
            with socket.create_connection((host, port), _CONNECT_TIMEOUT_S) as peer:
                return peer.recv(len(nonce), socket.MSG_WAITALL) == nonce.encode()
        except OSError:
            return False

    with ThreadPoolExecutor(len(addresses)) as threads:
        answers = list(threads.map(reached, addresses))
    tried = zip(addresses, answers, strict=True)
    return [str(address[0]) for address, answered in tried if answered]
