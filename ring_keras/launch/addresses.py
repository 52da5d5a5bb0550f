"""Which of this host's addresses the others reach."""

from __future__ import annotations

import contextlib
import functools
import secrets
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from ring_keras.launch.loop import Loop

__all__ = ["Probes", "host_port", "reached_addresses"]

# Within a site a connection takes milliseconds; a firewall may say nothing.
_CONNECT_TIMEOUT_S = 3.0


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


def host_port(host: str, port: int) -> str:
    """An address as RING_KERAS_STORE_ADDRESS has it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
