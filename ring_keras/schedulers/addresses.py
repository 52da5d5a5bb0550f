"""By which of its addresses other hosts reach this one."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Iterator

from ring_keras.config import Config, ConfigError, ScheduledRank

__all__ = ["own_address"]

# Of the block for examples: nothing is sent, the kernel only says which way it would.
_ANYWHERE = "192.0.2.1"


def own_address(config: Config, own: ScheduledRank) -> str:
    """Where rank 0's store listens: loopback, if all ranks are on this host.

    Raises:
        ConfigError: If there is no address for other hosts.
    """
    if config.bind_address is not None:
        return config.bind_address
    if own.one_host:
        return "127.0.0.1"
    tried = []
    for name in filter(None, (own.reach, socket.gethostname(), _ANYWHERE)):
        for address in _addresses_towards(name):
            if not ipaddress.ip_address(address.partition("%")[0]).is_loopback:
                return address
            tried.append(f"{address} (towards {name})")
    raise ConfigError(
        "rank 0 has no address at which other hosts could reach it. Tried: "
        f"{', '.join(tried) or 'none'}. Set RING_KERAS_BIND_ADDRESS for rank 0."
    )


def _addresses_towards(name: str) -> Iterator[str]:
    """This host's own address on the way to another, or to itself."""
    with contextlib.suppress(OSError):
        for family, kind, _, _, remote in socket.getaddrinfo(
            name, 9, type=socket.SOCK_DGRAM
        ):
            with contextlib.suppress(OSError), socket.socket(family, kind) as probe:
                probe.connect(remote)
                yield probe.getsockname()[0]
