"""A line between the launcher and an agent, which notices when it is cut."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from ring_keras.config import HEARTBEAT_S, share_openssl
from ring_keras.launch.frames import (
    MAX_FRAME_NBYTES,
    FrameReader,
    Message,
    ProtocolError,
    encode,
)
from ring_keras.launch.loop import TICK_S, Loop

if TYPE_CHECKING:
    from ring_keras import _native

__all__ = ["BEYOND_HEARTBEAT_S", "CLOSED", "Connection", "no_word_for", "tls_buffer"]

CLOSED = "the connection was closed"
"""Why a connection ends whose other end has ended."""

# The other end is given up so much later than a rank is: what the store says of its
# ranks comes first.
BEYOND_HEARTBEAT_S = 5.0

_READ_NBYTES = 1 << 16
_MAX_UNTRUSTED_NBYTES = 1024


def no_word_for(limit_s: float) -> str:
    """Why an end is given up that has been silent for so long."""
    return (
        f"there was no word from it for {limit_s:g} s "
        f"(RING_KERAS_HEARTBEAT_TIMEOUT_S and {BEYOND_HEARTBEAT_S:g} s)"
    )


def tls_buffer(*, server: bool, key: bytes) -> _native.TlsBuffer:
    """One end of what `Connection.encrypt` speaks; the other has the same key.

    Raises:
        ProtocolError: If there is no OpenSSL.
    """
    # Not before it is needed: only where something is encrypted.
    from ring_keras import _native

    share_openssl()
    try:
        return _native.TlsBuffer(server=server, key=key)
    except ValueError as error:
        raise ProtocolError(str(error)) from None


class Connection:
    """Sends and receives messages, and never blocks.

    Both ends ping each second. A cut link shows in nothing else.

    Args:
        loop: Calls back.
        read_fd: Where messages come from; closed with the connection.
        write_fd: Where they go to, another descriptor; closed with the connection.
        on_message: Gets each; a ProtocolError that it raises ends the connection.
        on_end: Called once, with the reason, unless `close` was called before:
            no message will come any more.
        greeted: Whether what comes begins with frames; see `FrameReader`. Until
            the greeting has come, silence has no end.
        trusted: Whether the other end is known; if not, `trust` says so later, and
            until then it may send short messages only, and gets no pings.
    """

    def __init__(
        self,
        loop: Loop,
        read_fd: int,
        write_fd: int,
        *,
        on_message: Callable[[Message], None],
        on_end: Callable[[str], None],
        greeted: bool = True,
        trusted: bool = True,
    ) -> None:
        self._loop = loop
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._on_message = on_message
        self._on_end = on_end
        self._reader = FrameReader(greeted=greeted)
        self._trusted = trusted
        if not trusted:
            self._reader.max_nbytes = _MAX_UNTRUSTED_NBYTES
        self._tls: _native.TlsBuffer | None = None
        self._listening = greeted
        self._silent_ticks = 0
        self.silence_s = HEARTBEAT_S
        """How long the other end may be silent, and a little longer."""
        self._outgoing = bytearray()
        self._writable = True
        self.is_open = True
        """Whether it has neither been closed nor ended."""
        for fd in (read_fd, write_fd):
            os.set_blocking(fd, False)
        loop.on_readable(read_fd, self.read)
        loop.on_tick(self._tick)

    @property
    def skipped(self) -> bytes:
        """What came before the greeting."""
        return self._reader.skipped

    @property
    def silent_s(self) -> float:
        """Since when nothing has come: seconds of this machine's own time."""
        return self._silent_ticks * TICK_S

    @property
    def drained(self) -> bool:
        """Whether all that was sent has been written, or never can be."""
        return not (self.is_open and self._outgoing)

    def trust(self) -> None:
        """The other end is known."""
        self._trusted = True
        self._reader.max_nbytes = MAX_FRAME_NBYTES

    def encrypt(self, tls: _native.TlsBuffer) -> None:
        """From the next byte on, in both directions, it speaks under TLS."""
        self._tls = tls
        self._reader.put(self._decrypted(self._reader.take_rest()))

    def send(self, message: Message) -> None:
        """Sends it, or what there is room for; the rest when there is."""
        self.send_raw(encode(message))

    def send_raw(self, data: bytes) -> None:
        """The same of bytes that are no frame."""
        if self.is_open and self._writable:
            if self._tls is not None:
                self._tls.push(data)
                data = self._tls.outgoing()
            self._outgoing += data
            self._write()

    def read(self) -> None:
        """Takes what has come, without waiting."""
        while self.is_open:
            try:
                data = os.read(self._read_fd, _READ_NBYTES)
            except BlockingIOError:
                return
            except ConnectionResetError:  # By a process that had not read all.
                data = b""
            except OSError as error:
                self._end(f"the connection broke: {error.strerror}")
                return
            if not data:
                self._end(CLOSED)
                return
            self.take(data)

    def close(self) -> None:
        """Ends it, without a word."""
        if not self.is_open:
            return
        self.is_open = False
        self._loop.no_tick(self._tick)
        for fd in (self._read_fd, self._write_fd):
            self._loop.forget(fd)
            os.close(fd)

    def take(self, data: bytes) -> None:
        """Takes bytes that have come; from outside, those of before it was there."""
        try:
            if self._tls is not None:
                data = self._decrypted(data)
            for message in self._reader.feed(data):
                self._listening = True
                self._silent_ticks = 0
                if isinstance(message, dict) and message["type"] == "ping":
                    continue
                if self.is_open:
                    self._on_message(message)
        except ProtocolError as error:
            self._end(f"what it said makes no sense: {error}")

    def _decrypted(self, data: bytes) -> bytes:
        assert self._tls is not None
        try:
            return self._tls.take(data)
        except ValueError as error:
            raise ProtocolError(str(error)) from None
        finally:
            # The handshake's next step, or why nothing more is taken.
            if self.is_open and self._writable:
                self._outgoing += self._tls.outgoing()
                self._write()

    def _write(self) -> None:
        try:
            while self._outgoing:
                del self._outgoing[: os.write(self._write_fd, self._outgoing)]
        except BlockingIOError:
            self._loop.on_writable(self._write_fd, self._write)
            return
        except OSError:
            # What the other end has said may still be under way: its end tells.
            self._writable = False
            self._outgoing.clear()
        self._loop.on_writable(self._write_fd, None)

    def _tick(self) -> None:
        if self._listening:
            # One's own ticks: after a pause of this machine the other has as long as
            # ever to speak.
            self._silent_ticks += 1
            limit_s = self.silence_s + BEYOND_HEARTBEAT_S
            if self.silent_s > limit_s:
                self._end(no_word_for(limit_s))
                return
        # Or what waits will tell. Until both know each other each has one thing to
        # say, and what follows it may be encrypted.
        if not self._outgoing and self._trusted:
            self.send({"type": "ping"})

    def _end(self, reason: str) -> None:
        self.close()
        self._on_end(reason)
