"""The messages between the launcher and an agent, as bytes.

A frame is the length of the rest (4 bytes), a kind (1), and JSON, or what a rank
printed. Nothing that arrives is run or unpickled, and a length is checked before
memory is taken for it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from ring_keras.launch.output import STREAMS

__all__ = [
    "GREETING",
    "MAX_FRAME_NBYTES",
    "FrameReader",
    "Message",
    "Output",
    "ProtocolError",
    "encode",
    "field",
]

# An agent's first bytes. A login shell may print something before.
GREETING = b"\n\0ring_keras agent\0\n"
_MAX_SKIPPED_NBYTES = 1 << 16

# The largest is a plan, with a command and an environment.
MAX_FRAME_NBYTES = 16 * 1024 * 1024

_LENGTH = struct.Struct(">I")
_OUTPUT = struct.Struct(">BIB")  # Kind, rank, stream.
_JSON_KIND = b"\1"
_OUTPUT_KIND = b"\2"

_Value = TypeVar("_Value")


class ProtocolError(Exception):
    """What came is no message."""


@dataclass(frozen=True)
class Output:
    """What a rank printed.

    Attributes:
        rank: The rank.
        stream: One of `STREAMS`.
        data: As it printed it; nothing: it has closed the stream.
    """

    rank: int
    stream: str
    data: bytes


Message = dict[str, Any] | Output
"""A dict has its kind under "type"."""


def encode(message: Message) -> bytes:
    """The message as a frame.

    Raises:
        ProtocolError: If it is longer than a frame may be.
    """
    if isinstance(message, Output):
        stream = STREAMS.index(message.stream)
        body = _OUTPUT.pack(_OUTPUT_KIND[0], message.rank, stream) + message.data
    else:
        # ASCII, with escapes: text of the environment need not be Unicode.
        body = _JSON_KIND + json.dumps(message).encode("ascii")
    if len(body) > MAX_FRAME_NBYTES:
        raise ProtocolError(
            f"a message has at most {MAX_FRAME_NBYTES} bytes, this one {len(body)}"
        )
    return _LENGTH.pack(len(body)) + body


def field(message: dict[str, Any], name: str, kind: type[_Value]) -> _Value:
    """A message's field, which must be there and of that type.

    Raises:
        ProtocolError: If it is not.
    """
    value = message.get(name)
    # To Python a bool is an int.
    if not isinstance(value, kind) or isinstance(value, bool) != (kind is bool):
        raise ProtocolError(
            f"{message.get('type')!r} must have {name}: {kind.__name__}"
        )
    return value


class FrameReader:
    """Cuts a stream of bytes into messages.

    Args:
        greeted: Whether frames come from the first byte; else what comes before
            the greeting is set aside.
    """

    def __init__(self, *, greeted: bool) -> None:
        self._greeted = greeted
        self._pending = bytearray()
        self.max_nbytes = MAX_FRAME_NBYTES
        """A longer frame is refused."""
        self.skipped = b""
        """What came before the greeting."""

    def feed(self, data: bytes) -> Iterator[Message]:
        """Takes bytes; yields the messages they complete.

        Who gets one may `take_rest` of what follows it, and `put` something else.

        Raises:
            ProtocolError: If they are no frames.
        """
        self._pending += data
        if not self._greeted and not self._find_greeting():
            return
        while (message := self._next()) is not None:
            yield message

    def take_rest(self) -> bytes:
        """What has come beyond the last message, which is forgotten here."""
        rest = bytes(self._pending)
        self._pending.clear()
        return rest

    def put(self, data: bytes) -> None:
        """Adds bytes to what has come."""
        self._pending += data

    def _find_greeting(self) -> bool:
        start = self._pending.find(GREETING)
        if start < 0:
            if len(self._pending) > _MAX_SKIPPED_NBYTES:
                raise ProtocolError("something else than an agent answers")
            self.skipped = bytes(self._pending)
            return False
        self.skipped = bytes(self._pending[:start])
        del self._pending[: start + len(GREETING)]
        self._greeted = True
        return True

    def _next(self) -> Message | None:
        if len(self._pending) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._pending)
        if not 1 <= length <= self.max_nbytes:
            raise ProtocolError(f"a frame cannot have {length} bytes")
        end = _LENGTH.size + length
        if len(self._pending) < end:
            return None
        body = bytes(self._pending[_LENGTH.size : end])
        del self._pending[:end]
        return _decode(body)


def _decode(body: bytes) -> Message:
    if body[:1] == _OUTPUT_KIND and len(body) >= _OUTPUT.size:
        _, rank, stream = _OUTPUT.unpack_from(body)
        if stream < len(STREAMS):
            return Output(rank, STREAMS[stream], body[_OUTPUT.size :])
    elif body[:1] == _JSON_KIND:
        try:
            message = json.loads(body[1:])
        except (ValueError, RecursionError) as error:
            raise ProtocolError(f"not JSON: {error}") from None
        if isinstance(message, dict) and isinstance(message.get("type"), str):
            return message
    raise ProtocolError(f"not a message: {body[:40]!r}")
