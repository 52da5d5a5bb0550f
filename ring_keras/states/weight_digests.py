"""Which variables are not the same, bit for bit, on all ranks."""

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from ring_keras import _native
from ring_keras.job.process_set import ProcessSet

__all__ = [
    "all_digests",
    "differing",
    "digests",
    "gather_digests",
    "variable_name",
    "who_has_what",
]


def all_digests(
    variables: Sequence[Any], name: str, process_set: ProcessSet
) -> np.ndarray[Any, Any]:
    """Every rank's digests of its variables' values; a collective of 8 bytes each.

    Reads each variable once, at about 1 GB a second.

    Args:
        variables: With values, in the same order on every rank.
        name: Of the collective.
        process_set: Ranks taking part.

    Returns:
        One row per rank, but for those in `ring.join()`; a column per variable.

    Raises:
        RankMismatchError: If the ranks have different numbers of variables.
    """
    return gather_digests(digests(variables), name, process_set)


def gather_digests(
    own: Sequence[int], name: str, process_set: ProcessSet
) -> np.ndarray[Any, Any]:
    """The same of digests that this rank has computed."""
    row = np.array([own], np.int64)
    return _native.allgather(row, name, process_set.communicator_id())


def differing(variables: Sequence[Any], digests: np.ndarray[Any, Any]) -> list[Any]:
    """Those variables that are not the same on all ranks; see `all_digests`."""
    same = (digests == digests[0]).all(axis=0)
    return [one for one, is_same in zip(variables, same, strict=True) if not is_same]


def digests(variables: Sequence[Any]) -> list[int]:
    """Those of this rank's values."""
    return [_digest(variable) for variable in variables]


def who_has_what(column: np.ndarray[Any, Any], ranks: Sequence[int]) -> str:
    """Such as "ranks [0, 2] have one value, ranks [1] another"."""
    holders: dict[int, list[int]] = {}
    for rank, digest in zip(ranks, column.tolist(), strict=True):
        holders.setdefault(digest, []).append(rank)
    first, *others = (str(held) for held in holders.values())
    return ", ".join(
        [f"ranks {first} have one value", *(f"ranks {held} another" for held in others)]
    )


def variable_name(variable: Any) -> str:
    """What messages call a variable."""
    return str(getattr(variable, "path", None) or variable.name)


def _digest(variable: Any) -> int:
    value = np.ascontiguousarray(variable.numpy())
    return zlib.crc32(value.reshape(-1).view(np.uint8).data)
