"""Who holds the secret can show it, and nobody else can, with what was said before."""

import pytest

from ring_keras.launch.secret_proof import (
    CONNECTED,
    LISTENER,
    is_proof,
    new_nonce,
    proof,
)

TOKEN = bytes(range(32))


def test_both_ends_prove_themselves():
    for who in (CONNECTED, LISTENER):
        for encrypts in (False, True):
            given = proof(TOKEN, who, "theirs", "ours", encrypts)
            assert is_proof(given, TOKEN, who, "theirs", "ours", encrypts)


@pytest.mark.parametrize(
    "changed",
    [
        (b"x" * 32, CONNECTED, "theirs", "ours", True),
        # What one end has said does not do for the other.
        (TOKEN, LISTENER, "theirs", "ours", True),
        (TOKEN, CONNECTED, "another", "ours", True),
        (TOKEN, CONNECTED, "theirs", "another", True),
        (TOKEN, CONNECTED, "ours", "theirs", True),
        # Nobody is talked into sending in the clear.
        (TOKEN, CONNECTED, "theirs", "ours", False),
    ],
)
def test_nothing_else_is_a_proof(changed):
    given = proof(TOKEN, CONNECTED, "theirs", "ours", True)
    assert not is_proof(given, *changed)


@pytest.mark.parametrize("given", ["", "0" * 64, "\udcff", "ä"])
def test_nonsense_is_no_proof(given):
    assert not is_proof(given, TOKEN, CONNECTED, "theirs", "ours", True)


def test_numbers_do_not_come_again():
    assert len({new_nonce() for _ in range(100)}) == 100
