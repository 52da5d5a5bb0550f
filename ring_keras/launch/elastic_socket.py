"""Where the processes of a host ask to join a job, and hear who they are in it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ring_keras.launch.loop import Loop

__all__ = ["ElasticSocket", "Take", "Tell"]

_READ_NBYTES = 4096
_MAX_NBYTES = 1 << 16

# Sends a message; one that cannot be sent has nobody who waits for it.
Tell = Callable[[dict[str, Any]], None]
# The number of a process, whether it has the state of the job, how to answer it.
Take = Callable[[int, bool, Tell], None]


class ElasticSocket:
    """Lines of JSON, each way, in a directory that only the user may enter.

    Args:
        loop: Calls back.
        path: Where to listen.
        take: Is told who asks to join.
    """

    def __init__(self, loop: Loop, path: Path, take: Take) -> None:
        self._loop = loop
        self._take = take
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.setblocking(False)
        # The path itself may be longer than what an address can hold.
        directory = os.open(path.parent, os.O_PATH | os.O_CLOEXEC)
        try:
            self._listener.bind(f"/proc/self/fd/{directory}/{path.name}")
        finally:
            os.close(directory)
        self._listener.listen(128)
        loop.on_readable(self._listener.fileno(), self._accept)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            connection, _ = self._listener.accept()
            connection.setblocking(False)
            _Line(self._loop, connection, self._take)


class _Line:
    """The connection of one process."""

    def __init__(
        self,
        loop: Loop,
        connection: socket.socket,
        take: Take,
    ) -> None:
        self._loop = loop
        self._connection = connection
        self._take = take
        self._unread = b""
        loop.on_readable(connection.fileno(), self._read)

    def _read(self) -> None:
        try:
            data = self._connection.recv(_READ_NBYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._unread += data
        try:
            while b"\n" in self._unread:
                line, _, self._unread = self._unread.partition(b"\n")
                asked = json.loads(line)
                self._take(int(asked["join"]), bool(asked["has_state"]), self._tell)
        except (ValueError, KeyError, TypeError):
            data = b""
        if not data or len(self._unread) > _MAX_NBYTES:
            # That its process has ended is known from elsewhere.
            self._loop.forget(self._connection.fileno())
            self._connection.close()

    def _tell(self, message: dict[str, Any]) -> None:
        # A few hundred bytes always fit, unless nobody reads.
        with contextlib.suppress(OSError):
            self._connection.send(json.dumps(message).encode() + b"\n")
