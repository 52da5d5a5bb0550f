"""`python -m ring_keras.launch.call HOST:PORT SECRET_FILE`: calls an agent that waits.

With a third word, `door`, it was there before: if nobody listens, it has ended.

The launcher starts it where it would start ssh, and speaks with the agent over its
standard input and output. Between the hosts all of that goes through TLS. What waits
there is `listening_agent.py`, or the door of an agent that keeps its ranks.

It ends with code 0 if the agent has ended, for all it knows, and with `LINE_LOST` if it
may be there yet: an agent that has heard nothing for long closes the line, too.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ring_keras.config import ConfigError, read_token, split_address
from ring_keras.launch.connection import BEYOND_HEARTBEAT_S, tls_buffer
from ring_keras.launch.frames import FrameReader, Output, ProtocolError, encode
from ring_keras.launch.secret_proof import CALLED, CALLER, SecretProof, answer_to

if TYPE_CHECKING:
    from ring_keras import _native

__all__ = ["DOOR", "LINE_LOST"]

DOOR = "door"

LINE_LOST = 255
"""The exit code where the agent may be there yet; that of ssh, too."""

_PATIENCE_S = 60.0
_CONNECT_TIMEOUT_S = 5.0
_MEET_TIMEOUT_S = 10.0
_ANSWER_TIMEOUT_S = 2.0
_RETRY_S = 0.5
_NBYTES = 1 << 16

_NOT_TAKEN = "it does not take the call. Is the secret the same there?"


def main(arguments: Sequence[str] | None = None) -> int:
    """Passes on what is said, until one side ends; returns the exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    address, secret_file, *kind = words
    try:
        token = read_token(secret_file, "--secret-file")
        place = split_address(address)
        peer = _connected(*place, was_there=DOOR in kind)
        if peer is None:
            return 0
        with peer:
            try:
                tls, said = _meet(peer, token)
            except ConnectionError:
                raise ProtocolError(_NOT_TAKEN) from None
            silent_s = _pass_on(peer, tls, said)
        if silent_s is None:
            return 0
        if DOOR in kind:
            return LINE_LOST if _answers(*place) else 0
        # Who waits for calls is there without this agent, too.
        return LINE_LOST if silent_s > BEYOND_HEARTBEAT_S else 0
    except (ConfigError, OSError, ProtocolError, ValueError) as error:
        print(f"the agent at {address}: {error}", file=sys.stderr)
        return 1


def _connected(host: str, port: int, *, was_there: bool) -> socket.socket | None:
    """Its name may not be known yet, nor the agent be there; None: no more."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return socket.create_connection((host, port), _CONNECT_TIMEOUT_S)
        except OSError as error:
            if was_there and isinstance(error, ConnectionRefusedError):
                return None
            if time.monotonic() > deadline:
                problem = error.strerror or error
                raise OSError(f"{problem}, for {_PATIENCE_S:g} s") from None
        time.sleep(_RETRY_S)


def _meet(peer: socket.socket, token: bytes) -> tuple[_native.TlsBuffer, bytes]:
    """Both show that they hold the secret; the line, and what it has said beyond."""
    peer.settimeout(_MEET_TIMEOUT_S)
    reader = FrameReader(greeted=True)
    proof: SecretProof | None = None
    tls: _native.TlsBuffer | None = None
    while data := peer.recv(_NBYTES):
        if tls is not None:
            data = tls.take(data)
            peer.sendall(tls.outgoing())
        for message in reader.feed(data):
            if isinstance(message, Output):
                raise ProtocolError("it is no agent yet")
            if message["type"] == "challenge" and tls is None:
                proof, answer = answer_to(message, token, CALLER, encrypts=True)
                peer.sendall(encode(answer))
                tls = tls_buffer(server=False, key=proof.key())
                # What has come in the clear beyond that is taken for TLS.
                reader.put(tls.take(reader.take_rest()))
                peer.sendall(tls.outgoing())
            elif message["type"] == "welcome" and tls is not None:
                assert proof is not None
                proof.require(CALLED, message)
                peer.settimeout(None)
                return tls, reader.take_rest()
            else:
                raise ProtocolError(f"it said {message['type']!r} at first")
    raise ProtocolError(_NOT_TAKEN)


def _pass_on(peer: socket.socket, tls: _native.TlsBuffer, said: bytes) -> float | None:
    """Until one side ends.

    Returns:
        For how many seconds the launcher had said nothing when the agent closed the
        line; None: the launcher has ended it.
    """
    _write(said)
    heard_at = _now()
    while True:
        readable, _, _ = select.select([0, peer.fileno()], [], [])
        if 0 in readable:
            data = os.read(0, _NBYTES)
            if not data:  # The launcher has ended, or has done with it.
                return None
            heard_at = _now()
            tls.push(data)
        if peer.fileno() in readable:
            try:
                data = peer.recv(_NBYTES)
            except ConnectionResetError:  # By a process that had not read all.
                data = b""
            if not data:  # With its last word it has said how it ended.
                return _now() - heard_at
            _write(tls.take(data))
        peer.sendall(tls.outgoing())


def _now() -> float:
    """Also while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _answers(host: str, port: int) -> bool:
    """Whether somebody is at that door, as far as anybody can tell.

    One that is ending has it open for a moment yet, and says nothing to who comes.
    """
    try:
        with socket.create_connection((host, port), _CONNECT_TIMEOUT_S) as peer:
            peer.settimeout(_ANSWER_TIMEOUT_S)
            peer.recv(1)
    except (ConnectionRefusedError, ConnectionResetError):
        return False
    except OSError:  # Its network is gone, or it is too busy to say anything.
        return True
    return True


def _write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


if __name__ == "__main__":
    sys.exit(main())
