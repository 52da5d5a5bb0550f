"""An agent's side of its ranks' output: to the launcher, as it can take it."""

from __future__ import annotations

import functools
import os

from ring_keras.launch.connection import Connection
from ring_keras.launch.frames import Output
from ring_keras.launch.loop import Loop
from ring_keras.launch.output import read_rest

__all__ = ["WINDOW_NBYTES", "ForwardedOutput"]

# Of a host's output, how much may be under way, unwritten. The rest waits in the
# ranks' pipes: a launcher with many hosts holds this much of each.
WINDOW_NBYTES = 256 * 1024
_READ_NBYTES = 1 << 15


class ForwardedOutput:
    """Reads what ranks print, and sends it."""

    def __init__(self, loop: Loop, connection: Connection) -> None:
        self._loop = loop
        self._connection = connection
        self._streams: dict[int, tuple[int, str]] = {}
        self._room = WINDOW_NBYTES
        self._dropping = False

    def add_rank(self, rank: int, stdout_fd: int, stderr_fd: int) -> None:
        """Takes over the reading ends of a rank's pipes."""
        for name, fd in (("stdout", stdout_fd), ("stderr", stderr_fd)):
            self._streams[fd] = (rank, name)
        self._listen()

    @property
    def done(self) -> bool:
        """Whether all ranks have closed their output, and it has been sent."""
        return not self._streams

    def open_streams(self, rank: int) -> list[str]:
        """Which of a rank's streams have not been sent to their ends."""
        return [name for owner, name in self._streams.values() if owner == rank]

    def hold(self) -> None:
        """There is no launcher: what ranks print waits in their pipes."""
        self._room = 0
        self._listen()

    def go_on(self, connection: Connection) -> None:
        """There is another one, which has got nothing yet."""
        self._connection = connection
        self._room = WINDOW_NBYTES
        self._listen()

    def written(self, nbytes: int) -> None:
        """The launcher has written so much: as much more may come."""
        self._room += nbytes
        self._listen()

    def drop(self) -> None:
        """Reads on, so that ranks do not wait, but sends nothing any more."""
        self._dropping = True
        self._listen()

    def abandon(self) -> None:
        """All ranks have ended, and what they have left holds their pipes open."""
        for fd, (rank, stream) in list(self._streams.items()):
            data = read_rest(fd)
            self._end(fd)
            for piece in [data, b""] if data else [b""]:
                if not self._dropping:
                    self._connection.send(Output(rank, stream, piece))

    def _listen(self) -> None:
        for fd in self._streams:
            if self._dropping or self._room > 0:
                self._loop.on_readable(fd, functools.partial(self._read, fd))
            else:
                self._loop.on_readable(fd, None)

    def _read(self, fd: int) -> None:
        most = _READ_NBYTES if self._dropping else min(_READ_NBYTES, self._room)
        if most <= 0:  # Another stream has taken the rest in this turn.
            return
        data = os.read(fd, most)
        rank, stream = self._streams[fd]
        if not data:
            self._end(fd)
        if self._dropping:
            return
        self._connection.send(Output(rank, stream, data))
        self._room -= len(data)
        if self._room <= 0:
            self._listen()

    def _end(self, fd: int) -> None:
        del self._streams[fd]
        self._loop.forget(fd)
        os.close(fd)
