"""Answers those that measure how fast a connection is."""

from __future__ import annotations

import contextlib
import hmac
import secrets
import socket
import threading
from collections.abc import Sequence
from types import TracebackType

from ring_keras.launch.doctor.speed import ECHO, KEY_NBYTES, NBYTES, SINK, TIMEOUT_S

__all__ = ["SpeedServer"]

_CHUNK_NBYTES = 1 << 20
_BACKLOG = 1024
# At a time; others wait.
_MOST_PEERS = 256


class SpeedServer:
    """Listens until it is closed; a context manager.

    Serves those only that know its key, and takes nothing of what they send but how
    much it is.

    Args:
        addresses: Of this host; each gets a free port.
        key: Hexadecimal digits; by default new ones.

    Raises:
        OSError: If one of them cannot be listened on.
    """

    def __init__(self, addresses: Sequence[str], key: str | None = None) -> None:
        self.key = key or secrets.token_hex(KEY_NBYTES // 2)
        self._room = threading.Semaphore(_MOST_PEERS)
        self._listeners: list[socket.socket] = []
        try:
            for address in addresses:
                family = socket.AF_INET6 if ":" in address else socket.AF_INET
                self._listeners.append(
                    socket.create_server((address, 0), family=family, backlog=_BACKLOG)
                )
        except OSError:
            self.close()
            raise
        for listener in self._listeners:
            threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Host and port of each."""
        return [listener.getsockname()[:2] for listener in self._listeners]

    def close(self) -> None:
        """Ends it; a peer that is being served is served to its end."""
        for listener in self._listeners:
            with contextlib.suppress(OSError):  # Wakes whoever waits in accept().
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()

    def __enter__(self) -> SpeedServer:
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            self._room.acquire()
            threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        with contextlib.suppress(OSError), peer:
            peer.settimeout(TIMEOUT_S)
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            said = peer.recv(KEY_NBYTES, socket.MSG_WAITALL)
            if hmac.compare_digest(said, self.key.encode()):
                peer.sendall(self.key[::-1].encode())
                wanted = peer.recv(1)
                if wanted == ECHO:
                    _echo(peer)
                elif wanted == SINK:
                    _count(peer)
        self._room.release()


def _echo(peer: socket.socket) -> None:
    while data := peer.recv(1):
        peer.sendall(data)


def _count(peer: socket.socket) -> None:
    buffer = bytearray(_CHUNK_NBYTES)
    total = 0
    while count := peer.recv_into(buffer):
        total += count
    peer.sendall(NBYTES.pack(total))
