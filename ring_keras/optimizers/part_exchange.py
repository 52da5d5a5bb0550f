"""Parts of a divided state on their way from rank to rank."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from ring_keras import _native
from ring_keras.optimizers.state_division import Part

__all__ = ["Key", "Values", "exchange", "keepers_of", "same_bits"]

Values: TypeAlias = npt.NDArray[Any]
"""What a part has."""

Key: TypeAlias = tuple[int, int]
"""Which optimizer, and which of its parts."""


def keepers_of(hosts: Sequence[str]) -> list[int]:
    """By rank: who keeps a copy of its part; on the next host, if there are several."""
    ranks_of: dict[str, list[int]] = {}
    for of, host in enumerate(hosts):
        ranks_of.setdefault(host, []).append(of)
    if len(ranks_of) == 1:
        return [(of + 1) % len(hosts) for of in range(len(hosts))]
    names = list(ranks_of)
    keepers = []
    for of, host in enumerate(hosts):
        there = ranks_of[names[(names.index(host) + 1) % len(names)]]
        keepers.append(there[ranks_of[host].index(of) % len(there)])
    return keepers


def exchange(
    sent: Sequence[Sequence[Values]],
    wanted: Sequence[Mapping[Key, Part]],
    name: str,
) -> dict[Key, Values]:
    """Has ranks send each other parts, which both sides know; collective.

    Args:
        sent: By rank, to which.
        wanted: By rank, from which, in the order in which that one sends them.
        name: The request's.
    """
    rows = [sum(value.nbytes for value in its) for its in sent]
    flat = [_bytes(value) for its in sent for value in its]
    array = np.concatenate(flat) if flat else np.zeros(0, np.uint8)
    received, _ = _native.alltoall(array, rows, name)
    found: dict[Key, Values] = {}
    begin = 0
    for key, part in (item for its in wanted for item in its.items()):
        dtype = np.dtype(tf.as_dtype(part.variable.dtype).as_numpy_dtype)
        end = begin + int(np.prod(part.shape, dtype=np.int64)) * dtype.itemsize
        found[key] = received[begin:end].view(dtype).reshape(part.shape)
        begin = end
    return found


def same_bits(one: Values, other: Values) -> bool:
    """Whether two parts are the same."""
    return np.array_equal(_bytes(one), _bytes(other))


def _bytes(value: Values) -> npt.NDArray[np.uint8]:
    return np.ascontiguousarray(value).reshape(-1).view(np.uint8)
