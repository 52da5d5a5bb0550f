"""How two processes show each other that they hold a job's secret.

Whoever has connected proves it first. Each proof covers both ends' fresh numbers and
says whose it is, so none can be sent again, or back.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

__all__ = ["CONNECTED", "LISTENER", "is_proof", "new_nonce", "proof"]

CONNECTED = "node"
LISTENER = "launcher"


def new_nonce() -> str:
    """A number that nobody can guess, and that does not come again."""
    return secrets.token_hex(16)


def proof(token: bytes, who: str, listeners_nonce: str, others_nonce: str) -> str:
    """What only holders of the secret can say.

    Args:
        token: The secret.
        who: `CONNECTED` or `LISTENER`: whose proof it is.
        listeners_nonce: The number of the end that listens.
        others_nonce: The other's.
    """
    text = f"ring_keras agent\0{who}\0{listeners_nonce}\0{others_nonce}"
    return hmac.new(token, text.encode(errors="replace"), hashlib.sha256).hexdigest()


def is_proof(
    found: str, token: bytes, who: str, listeners_nonce: str, others_nonce: str
) -> bool:
    """Whether somebody has said that; takes as long whatever they said."""
    expected = proof(token, who, listeners_nonce, others_nonce)
    return hmac.compare_digest(found.encode(errors="replace"), expected.encode())
