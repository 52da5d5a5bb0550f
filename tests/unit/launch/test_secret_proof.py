"""Who holds the secret can show it, and nobody else can, with what was said before."""

import pytest

from ring_keras.launch.frames import ProtocolError
from ring_keras.launch.secret_proof import (
    CONNECTED,
    LISTENER,
    SecretProof,
    answer_to,
    new_nonce,
)

TOKEN = bytes(range(32))
PROOF = SecretProof(TOKEN, "theirs", "ours", True)


@pytest.mark.parametrize("encrypts", [False, True])
def test_both_ends_prove_themselves(encrypts):
    own, answer = answer_to({"nonce": "theirs"}, TOKEN, CONNECTED, encrypts=encrypts)
    theirs = SecretProof(TOKEN, "theirs", answer["nonce"], answer["encrypt"])
    theirs.require(CONNECTED, answer)
    own.require(LISTENER, {"proof": theirs.by(LISTENER)})
    assert own.key() == theirs.key()


@pytest.mark.parametrize(
    ("changed", "who"),
    [
        (SecretProof(b"x" * 32, "theirs", "ours", True), CONNECTED),
        # What one end has said does not do for the other.
        (PROOF, LISTENER),
        (SecretProof(TOKEN, "another", "ours", True), CONNECTED),
        (SecretProof(TOKEN, "theirs", "another", True), CONNECTED),
        (SecretProof(TOKEN, "ours", "theirs", True), CONNECTED),
        # Nobody is talked into sending in the clear.
        (SecretProof(TOKEN, "theirs", "ours", False), CONNECTED),
    ],
)
def test_nothing_else_is_a_proof(changed, who):
    given = PROOF.by(CONNECTED)
    assert not changed.is_by(who, given)
    with pytest.raises(ProtocolError, match="has not the secret"):
        changed.require(who, {"proof": given})


@pytest.mark.parametrize("given", ["", "0" * 64, "\udcff", "ä"])
def test_nonsense_is_no_proof(given):
    assert not PROOF.is_by(CONNECTED, given)


def test_numbers_do_not_come_again():
    assert len({new_nonce() for _ in range(100)}) == 100
