"""By which of its addresses other hosts reach this one."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

from ring_keras.config import Config, ConfigError, ScheduledRank
from ring_keras.network.addresses import own_addresses

__all__ = ["own_address"]


def own_address(config: Config, own: ScheduledRank) -> str:
    """Where rank 0's store listens: loopback, if all ranks are on this host.

    Raises:
        ConfigError: If there is no address for other hosts, or none of the
            interfaces that are to be taken.
    """
    if config.bind_address is not None:
        return config.bind_address
    if own.one_host:
        return "127.0.0.1"
    try:
        addresses = own_addresses(config.interfaces or ())
    except ValueError as error:
        raise ConfigError(f"[RK115] RING_KERAS_INTERFACES: {error}") from None
    for name in filter(None, (own.reach, socket.gethostname())):
        for address in _addresses_towards(name):
            if address in addresses:
                return address
    if not addresses:
        raise ConfigError(
            "[RK114] "
            "rank 0's host has no address but loopback, and other hosts have ranks, "
            f"as {own.starter} says. RING_KERAS_BIND_ADDRESS names one."
        )
    return addresses[0]


def _addresses_towards(name: str) -> Iterator[str]:
    """This host's own address on the way to another, or to itself.

    Nothing is sent: the kernel only says which way it would.
    """
    with contextlib.suppress(OSError, UnicodeError):
        for family, kind, _, _, remote in socket.getaddrinfo(
            name, 9, type=socket.SOCK_DGRAM
        ):
            with contextlib.suppress(OSError), socket.socket(family, kind) as probe:
                probe.connect(remote)
                yield probe.getsockname()[0]
