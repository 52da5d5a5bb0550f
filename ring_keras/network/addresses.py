"""This host's own addresses."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Sequence

__all__ = ["is_own", "own_addresses"]


def own_addresses(interfaces: Sequence[str] = ()) -> list[str]:
    """Addresses of this host that others may reach: IPv4 first, then IPv6.

    Neither loopback nor link-local ones, nor those of containers' bridges, nor of
    interfaces that are down.

    Args:
        interfaces: Names of those to take; empty: all.

    Raises:
        ValueError: If this host has none of these. Says which it has.
        ImportError: If ring_keras is not built.
    """
    from ring_keras import _native

    return _native.own_addresses(list(interfaces))


def is_own(name: str) -> bool:
    """Whether a host's name or address means this host."""
    if name == socket.gethostname():
        return True
    if name.endswith(".invalid"):
        return False  # No host has such a name (RFC 6761): nobody need be asked.
    with contextlib.suppress(OSError, UnicodeError):
        for family, kind, _, _, address in socket.getaddrinfo(
            name, 0, type=socket.SOCK_STREAM
        ):
            # Only a host's own addresses can be bound.
            with contextlib.suppress(OSError), socket.socket(family, kind) as probe:
                probe.bind(address)
                return True
    return False
