"""Lets in those who show that they hold the secret, whatever strangers do."""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ring_keras.launch.connection import Connection, tls_buffer
from ring_keras.launch.frames import (
    FrameReader,
    Message,
    Output,
    ProtocolError,
    encode,
)
from ring_keras.launch.frames import field as field_of
from ring_keras.launch.loop import Loop
from ring_keras.launch.secret_proof import SecretProof, new_nonce

__all__ = ["Door", "Guest"]

# Strangers may connect as well, and cost no more than this.
_MAX_CANDIDATES = 64
_PATIENCE_S = 10.0
_MAX_NBYTES = 1024
_MAX_TOLD = 10


@dataclass(frozen=True)
class Guest:
    """Somebody who has shown that they hold the secret, and has heard nothing since.

    Attributes:
        peer: The connection, which does not block.
        address: Theirs.
        proof: What they have shown; whether they encrypt from here on.
        came: What they have said since; the connection takes it.
    """

    peer: socket.socket
    address: str
    proof: SecretProof
    came: bytes

    def welcome(
        self,
        who: str,
        loop: Loop,
        on_message: Callable[[Message], None],
        on_end: Callable[[str], None],
    ) -> Connection:
        """Shows them the same, as `who` of secret_proof.py; the line to them."""
        read_fd = self.peer.detach()
        connection = Connection(
            loop, read_fd, os.dup(read_fd), on_message=on_message, on_end=on_end
        )
        if self.proof.encrypts:
            connection.encrypt(tls_buffer(server=True, key=self.proof.key()))
        connection.send({"type": "welcome", "proof": self.proof.by(who)})
        return connection


@dataclass(eq=False)
class _Candidate:
    """Somebody who has connected."""

    peer: socket.socket
    address: str
    nonce: str = field(default_factory=new_nonce)
    until: float = field(default_factory=lambda: time.monotonic() + _PATIENCE_S)
    reader: FrameReader = field(default_factory=lambda: FrameReader(greeted=True))


class Door:
    """Challenges all who connect, in this process; strangers stay at most 10 s.

    `fileno` is readable while there is something to `serve`.

    Args:
        listener: Where they come; does not block.
        token: The secret.
        who: As whom they hold it, of secret_proof.py.
        challenge: What else they are told at first.
        admit: Gets each that has proven it.
        tell: Gets what to say of others.
    """

    def __init__(
        self,
        listener: socket.socket,
        token: bytes,
        who: str,
        challenge: Mapping[str, Any],
        admit: Callable[[Guest], None],
        tell: Callable[[str], None],
    ) -> None:
        self._listener = listener
        self._token = token
        self._who = who
        self._challenge = challenge
        self._admit = admit
        self._tell = tell
        self._told = 0
        self._candidates: list[_Candidate] = []
        self._selector = selectors.EpollSelector()
        self._selector.register(listener, selectors.EVENT_READ)

    def fileno(self) -> int:
        """What to wait for."""
        return self._selector.fileno()

    def serve(self) -> None:
        """Takes what has come, without waiting."""
        for key, _ in self._selector.select(0):
            if key.fileobj is self._listener:
                self._accept()
            elif key.data in self._candidates:
                self._read(key.data)

    def tick(self) -> None:
        """To be called about each second: those who say nothing have to go."""
        now = time.monotonic()
        while self._candidates and self._candidates[0].until <= now:
            self._drop(self._candidates[0])

    def close_copies(self) -> None:
        """Closes its descriptors in a forked child, which shares them."""
        self._selector.close()
        self._listener.close()
        for candidate in self._candidates:
            candidate.peer.close()

    def _accept(self) -> None:
        try:
            peer, address = self._listener.accept()
        except OSError as error:  # It has gone, or there is no descriptor for it.
            if error.errno in (errno.EMFILE, errno.ENFILE) and self._candidates:
                self._drop(self._candidates[0])
            return
        while len(self._candidates) >= _MAX_CANDIDATES:
            self._drop(self._candidates[0])
        peer.setblocking(False)
        candidate = _Candidate(peer, address[0])
        candidate.reader.max_nbytes = _MAX_NBYTES
        self._candidates.append(candidate)
        self._selector.register(peer, selectors.EVENT_READ, candidate)
        challenge = {"type": "challenge", "nonce": candidate.nonce, **self._challenge}
        with contextlib.suppress(OSError):  # What it says will show.
            peer.send(encode(challenge))

    def _read(self, candidate: _Candidate) -> None:
        try:
            data = candidate.peer.recv(_MAX_NBYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        try:
            answer = next(candidate.reader.feed(data), None)
            if answer is not None:
                self._check(candidate, answer)
        except ProtocolError:
            self._drop(candidate)
            return
        if not data:
            self._drop(candidate)

    def _check(self, candidate: _Candidate, answer: dict[str, Any] | Output) -> None:
        if isinstance(answer, Output) or answer["type"] != "answer":
            raise ProtocolError("it has not shown that it holds the secret")
        nonce, given = field_of(answer, "nonce", str), field_of(answer, "proof", str)
        # Those who call agents always do.
        encrypts = "encrypt" not in answer or field_of(answer, "encrypt", bool)
        proof = SecretProof(self._token, candidate.nonce, nonce, encrypts)
        if not proof.is_by(self._who, given):
            self._told += 1
            if self._told <= _MAX_TOLD:
                self._tell(
                    f"dropped a connection from {candidate.address}: it has not the "
                    "secret"
                )
            raise ProtocolError("it has not the secret")
        self._forget(candidate)
        came = candidate.reader.take_rest()
        self._admit(Guest(candidate.peer, candidate.address, proof, came))

    def _drop(self, candidate: _Candidate) -> None:
        if candidate in self._candidates:
            self._forget(candidate)
            candidate.peer.close()

    def _forget(self, candidate: _Candidate) -> None:
        self._candidates.remove(candidate)
        self._selector.unregister(candidate.peer)
