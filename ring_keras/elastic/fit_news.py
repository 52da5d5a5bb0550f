"""What ranks of a `fit` tell each other, and leave for a later job."""

import contextlib
import itertools
from collections.abc import Sequence
from typing import Any, Protocol

from ring_keras.errors import RankMismatchError
from ring_keras.job.topology import rank
from ring_keras.values.encoding import encode

__all__ = ["Backup", "encodable", "require_same"]


class Backup(Protocol):
    """What keeps the model, and the place in its training, beyond the job."""

    def save(self, place: dict[str, Any]) -> None:
        """By every rank that is left, none of which knows of others."""

    def restore(self) -> dict[str, Any] | None:
        """The place; None if there is no backup."""


def encodable(results: dict[int, Any]) -> dict[int, Any]:
    """Those that can be given to others."""
    plain = {}
    for number, result in results.items():
        with contextlib.suppress(TypeError, ValueError):
            encode(result)
            plain[number] = result
    return plain


def require_same(what: str, mine: Sequence[str], theirs: Sequence[str]) -> None:
    """Raises if a rank comes to others that train something else.

    Args:
        what: The descriptions are of.
        mine: This rank's.
        theirs: That of the one that has come furthest.

    Raises:
        RankMismatchError: On this rank alone, which ends by it; the others go on.
    """
    pairs = itertools.zip_longest(mine, theirs, fillvalue="nothing more")
    differing = [pair for pair in pairs if pair[0] != pair[1]]
    if differing:
        own, other = differing[0]
        raise RankMismatchError(
            "[RK322] "
            f"ring_keras.callbacks.Elastic: rank {rank()} has other {what} than those "
            f"that train already: {own} in place of {other}. Its script must make the "
            "same model, optimizer and data at every start: they must not depend on "
            "ring_keras.size()."
        )
