"""Where node 0 of a job without ssh listens."""

from __future__ import annotations

import ipaddress
import socket

from ring_keras.launch.desk import CannotStartError, Desk

__all__ = ["await_name", "listen_at"]

_NAME_TIMEOUT_S = 60.0


def await_name(host: str, where: str, timeout_s: float, desk: Desk) -> None:
    """Waits until this host's name is known; a pod's own comes with a delay.

    Args:
        host: The name, or an address.
        where: What names it, for messages.
        timeout_s: No longer than this, nor than a minute. Then `listen_at` fails.
        desk: The launcher's.
    """

    def is_known() -> bool:
        try:
            socket.getaddrinfo(host, None)
        except OSError:
            return False
        return True

    if is_known():
        return
    timeout_s = min(timeout_s, _NAME_TIMEOUT_S)
    desk.output.say(f"{where}: nobody knows that name yet; asking for {timeout_s:g} s")

    def ask_again() -> None:
        """Ends a turn of the loop each second."""

    desk.loop.on_tick(ask_again)
    desk.run_until(is_known, timeout_s)
    desk.loop.no_tick(ask_again)


def listen_at(host: str, port: int, where: str) -> socket.socket:
    """A socket that listens there, and does not block.

    Args:
        host: An address of this host, or its name.
        port: A free port.
        where: What names both, for messages.

    Raises:
        CannotStartError: If others could not come there.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, _, _, _, (address, *_) = found[0]
        meant = ipaddress.ip_address(address)
        if meant.is_unspecified:
            raise CannotStartError(f"{where}: give one address of node 0's host")
        if meant.is_loopback and host not in ("localhost", str(meant)):
            raise CannotStartError(
                f"{where}: on this host that is {meant}, which no other reaches; give "
                "its address"
            )
        listener = socket.create_server((str(address), port), family=family)
    except OSError as error:
        raise CannotStartError(
            f"{where}: {error.strerror}. Node 0 listens there: it must be an address "
            "of its host, and a free port"
        ) from None
    listener.setblocking(False)
    return listener
