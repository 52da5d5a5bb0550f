"""One request and its answer over TCP, between two who know the same secret.

Both sides contribute a random number, and every message carries a keyed hash of
both numbers and its content, so nobody without the secret can ask, answer, or
play back what was said before. Content is JSON, in the open.
"""

import hashlib
import hmac
import json
import secrets
import socket
import struct
from typing import Any

__all__ = ["AuthenticationError", "ask", "receive_request", "send_answer"]

_NONCE_NBYTES = 32
_DIGEST_NBYTES = hashlib.sha256().digest_size
_MAX_NBYTES = 1 << 16
_LENGTH = struct.Struct("!I")


class AuthenticationError(ConnectionError):
    """The other side does not know the secret."""


def ask(connection: socket.socket, key: bytes, request: dict[str, Any]) -> Any:
    """Sends a request and returns the answer."""
    theirs = _read(connection, _NONCE_NBYTES)
    ours = secrets.token_bytes(_NONCE_NBYTES)
    connection.sendall(ours)
    _write(connection, key, b"request" + theirs + ours, request)
    return _read_signed(connection, key, b"answer" + ours + theirs)


def receive_request(connection: socket.socket, key: bytes) -> tuple[Any, bytes]:
    """Reads a request; returns it, and what its answer must be bound to."""
    ours = secrets.token_bytes(_NONCE_NBYTES)
    connection.sendall(ours)
    theirs = _read(connection, _NONCE_NBYTES)
    request = _read_signed(connection, key, b"request" + ours + theirs)
    return request, b"answer" + theirs + ours


def send_answer(
    connection: socket.socket, key: bytes, binding: bytes, answer: Any
) -> None:
    """Answers the request that came with this binding."""
    _write(connection, key, binding, answer)


def _write(connection: socket.socket, key: bytes, binding: bytes, value: Any) -> None:
    content = json.dumps(value).encode()
    digest = hmac.digest(key, binding + content, "sha256")
    connection.sendall(_LENGTH.pack(len(content)) + digest + content)


def _read_signed(connection: socket.socket, key: bytes, binding: bytes) -> Any:
    (nbytes,) = _LENGTH.unpack(_read(connection, _LENGTH.size))
    if nbytes > _MAX_NBYTES:
        raise AuthenticationError(f"a message announces {nbytes} bytes")
    digest = _read(connection, _DIGEST_NBYTES)
    content = _read(connection, nbytes)
    if not hmac.compare_digest(digest, hmac.digest(key, binding + content, "sha256")):
        raise AuthenticationError("a message is not signed with this job's secret")
    return json.loads(content)


def _read(connection: socket.socket, nbytes: int) -> bytes:
    content = bytearray()
    while len(content) < nbytes:
        piece = connection.recv(nbytes - len(content))
        if not piece:
            raise ConnectionError("the other side closed the connection")
        content += piece
    return bytes(content)
