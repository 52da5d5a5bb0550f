"""How two processes show each other that they hold a job's secret.

Whoever has connected proves it first. Each proof covers both ends' fresh numbers and
says whose it is, so none can be sent again, or back.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

__all__ = [
    "CALLED",
    "CALLER",
    "CONNECTED",
    "LISTENER",
    "connection_key",
    "is_proof",
    "new_nonce",
    "proof",
]

CONNECTED = "node"
LISTENER = "launcher"

# The same between a launcher and an agent that waits for it.
CALLER = "launcher that calls"
CALLED = "agent that waits"


def new_nonce() -> str:
    """A number that nobody can guess, and that does not come again."""
    return secrets.token_hex(16)


def proof(
    token: bytes, who: str, listeners_nonce: str, others_nonce: str, encrypts: bool
) -> str:
    """What only holders of the secret can say.

    Args:
        token: The secret.
        who: One of the above: whose proof it is.
        listeners_nonce: The number of the end that listens.
        others_nonce: The other's.
        encrypts: Whether it encrypts what follows.
    """
    nonces = f"{listeners_nonce}\0{others_nonce}"
    text = f"ring_keras agent 2\0{who}\0{nonces}\0{int(encrypts)}"
    return hmac.new(token, text.encode(errors="replace"), hashlib.sha256).hexdigest()


def is_proof(
    found: str,
    token: bytes,
    who: str,
    listeners_nonce: str,
    others_nonce: str,
    encrypts: bool,
) -> bool:
    """Whether somebody has said that; takes as long whatever they said."""
    expected = proof(token, who, listeners_nonce, others_nonce, encrypts)
    return hmac.compare_digest(found.encode(errors="replace"), expected.encode())


def connection_key(token: bytes, listeners_nonce: str, others_nonce: str) -> bytes:
    """With what two that have shown it to each other encrypt what follows."""
    text = f"ring_keras agent key\0{listeners_nonce}\0{others_nonce}"
    return hmac.digest(token, text.encode(errors="replace"), "sha256")
