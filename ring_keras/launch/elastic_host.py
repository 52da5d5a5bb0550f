"""A host's part in an elastic job, whose processes come one by one."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ring_keras.launch.crew import LocalCrew
from ring_keras.launch.loop import Loop
from ring_keras.launch.places import Place
from ring_keras.launch.workers import Worker

__all__ = ["ElasticHost", "ElasticSocket", "Tell", "start_process"]


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


class ElasticHost:
    """Passes on what this host's processes and the launcher say to each other.

    Args:
        loop: Calls back.
        path: Where processes ask.
        send: Sends a message to the launcher.
    """

    def __init__(
        self, loop: Loop, path: Path, send: Callable[[dict[str, Any]], None]
    ) -> None:
        self.path = path
        self._send = send
        self._tells: dict[int, Tell] = {}
        ElasticSocket(loop, path, self._take)

    def tell(self, number: int, message: dict[str, Any]) -> None:
        """Gives a process the launcher's message."""
        if number in self._tells:
            self._tells[number](message)

    def _take(self, number: int, has_state: bool, tell: Tell) -> None:
        self._tells[number] = tell
        self._send({"type": "join", "rank": number, "has_state": has_state})


def start_process(crew: LocalCrew, number: int, size: int, socket_path: Path) -> Worker:
    """Starts a process of an elastic job. Must be called from the main thread.

    Which rank it is, it learns when it joins.

    Args:
        crew: Of this host.
        number: The process's, which it keeps.
        size: With how many the job begins.
        socket_path: Where it asks.
    """
    place = Place(number, size, number, size, 0, 1)
    # An empty variable is an unset one: there is no store until all have joined.
    return crew.start_one(
        place, "", more={"RING_KERAS_ELASTIC_SOCKET": str(socket_path)}
    )
