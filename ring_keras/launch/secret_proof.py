"""How two processes show each other that they hold a job's secret.

Whoever has connected proves it first. Each proof covers both ends' fresh numbers and
says whose it is, so none can be sent again, or back.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from typing import Any

from ring_keras.launch.frames import ProtocolError, field

__all__ = [
    "CALLED",
    "CALLER",
    "CONNECTED",
    "LISTENER",
    "SecretProof",
    "answer_to",
    "new_nonce",
]

CONNECTED = "node"
LISTENER = "launcher"

# The same between a launcher and an agent that waits for it.
CALLER = "launcher that calls"
CALLED = "agent that waits"


def new_nonce() -> str:
    """A number that nobody can guess, and that does not come again."""
    return secrets.token_hex(16)


@dataclass(frozen=True)
class SecretProof:
    """What both ends of a connection show each other.

    Attributes:
        token: The secret.
        listeners_nonce: The number of the end that listens.
        others_nonce: The other's.
        encrypts: Whether they encrypt what follows.
    """

    token: bytes
    listeners_nonce: str
    others_nonce: str
    encrypts: bool

    def by(self, who: str) -> str:
        """What only a holder of the secret can say; `who` is one of the above."""
        nonces = f"{self.listeners_nonce}\0{self.others_nonce}"
        text = f"ring_keras agent 2\0{who}\0{nonces}\0{int(self.encrypts)}"
        content = text.encode(errors="replace")
        return hmac.new(self.token, content, hashlib.sha256).hexdigest()

    def is_by(self, who: str, found: str) -> bool:
        """Whether somebody has said that; takes as long whatever they said."""
        given = found.encode(errors="replace")
        return hmac.compare_digest(given, self.by(who).encode())

    def require(self, who: str, message: dict[str, Any]) -> None:
        """Raises ProtocolError if the message does not say it."""
        if not self.is_by(who, field(message, "proof", str)):
            raise ProtocolError("it has not the secret")

    def key(self) -> bytes:
        """With what the two encrypt."""
        text = f"ring_keras agent key\0{self.listeners_nonce}\0{self.others_nonce}"
        return hmac.digest(self.token, text.encode(errors="replace"), "sha256")


def answer_to(
    challenge: dict[str, Any], token: bytes, who: str, *, encrypts: bool
) -> tuple[SecretProof, dict[str, Any]]:
    """The proofs of a connection whose listener has spoken, and what to answer."""
    theirs = field(challenge, "nonce", str)
    proof = SecretProof(token, theirs, new_nonce(), encrypts)
    return proof, {
        "type": "answer",
        "nonce": proof.others_nonce,
        "proof": proof.by(who),
        "encrypt": encrypts,
    }
