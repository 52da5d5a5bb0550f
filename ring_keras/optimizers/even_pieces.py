"""Dividing variables so that each rank has about the same number of bytes."""

import bisect
import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, Final

import tensorflow as tf

from ring_keras.ops.shards import Piece
from ring_keras.optimizers.buckets import GradientSpec, plan_buckets

__all__ = ["balanced", "cut_evenly", "in_buckets", "whole_pieces"]

# Of a rank's share. A cut may be that far from where it would be exact, and is made
# between two variables, or between two rows of one, where there is such a place.
_SLACK: Final = 0.02

# The elements of a variable are computed in vectors, but for its last ones, for which a
# root or a power may come to other bits. So a piece has whole vectors: a multiple of as
# many elements as the largest vector of a processor has of the smallest type.
_VECTOR: Final = 64


def whole_pieces(
    variables: Sequence[Any], owners: Sequence[int]
) -> list[tuple[Piece, ...]]:
    """Gives each variable to one rank.

    Args:
        variables: Of the model.
        owners: The ranks.

    Returns:
        Of each variable its one piece.
    """
    places = balanced(list(map(_nbytes, variables)), len(owners))
    return [
        (Piece(owners[place], 0, math.prod(variable.shape)),)
        for variable, place in zip(variables, places, strict=True)
    ]


def balanced(sizes: Sequence[int], places: int) -> list[int]:
    """Divides things, so that each place has about as much: the largest ones first."""
    loads = [0] * places
    result = [0] * len(sizes)
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        place = loads.index(min(loads))
        result[index] = place
        loads[place] += sizes[index]
    return result


def in_buckets(variables: Sequence[Any], nbytes: int) -> list[list[Any]]:
    """Those whose gradients travel together, so that a rank gets a part of each bucket.

    If the backward pass makes the gradients in its usual order.

    Args:
        variables: Of the model.
        nbytes: Of a bucket.
    """
    specs = [
        GradientSpec(
            variable.name,
            tf.as_dtype(variable.dtype).name,
            _itemsize(variable),
            tuple(variable.shape),
        )
        for variable in variables
    ]
    return [
        [variables[index] for index in sorted(bucket.indices)]
        for bucket in plan_buckets(specs, nbytes).buckets
    ]


def cut_evenly(
    variables: Sequence[Any], owners: Sequence[int]
) -> list[tuple[Piece, ...]]:
    """Gives each rank the same number of bytes that lie one behind the other.

    So at most one variable is cut for each rank but the first.

    Args:
        variables: Of the model.
        owners: The ranks.

    Returns:
        Of each variable its pieces.
    """
    sizes = list(map(_nbytes, variables))
    begins = [0, *accumulate(sizes)]
    slack = _SLACK * begins[-1] / len(owners)
    cuts: list[int] = []
    for place in range(1, len(owners)):
        exact = begins[-1] * place // len(owners)
        # Of those that begin there, the last one, which alone is not empty.
        index = min(bisect.bisect_right(begins, exact), len(sizes)) - 1
        cuts.append(
            begins[index] + _cut(variables[index], exact - begins[index], slack)
            if sizes
            else 0
        )
    found = []
    for variable, (begin, end) in zip(variables, pairwise(begins), strict=True):
        inside = sorted({cut for cut in cuts if begin < cut < end})
        itemsize = _itemsize(variable)
        found.append(
            tuple(
                Piece(
                    owners[bisect.bisect_right(cuts, first)],
                    (first - begin) // itemsize,
                    (last - begin) // itemsize,
                )
                for first, last in pairwise([begin, *inside, end])
            )
        )
    return found


def _cut(variable: Any, at: int, slack: float) -> int:
    """Where to cut a variable, in bytes from its beginning, about at that byte."""
    nbytes = _nbytes(variable)
    if at <= slack:
        return 0
    if nbytes - at <= slack:
        return nbytes
    # The largest unit in which it is close enough: rows, or rows of these.
    units = [
        math.lcm(int(math.prod(variable.shape[axis:])), _VECTOR) * _itemsize(variable)
        for axis in range(1, max(len(variable.shape), 1) + 1)
    ]
    unit = next((unit for unit in units if unit <= slack), units[-1])
    before = at // unit * unit
    after = min(before + unit, nbytes)
    return before if at - before <= after - at else after


def _itemsize(variable: Any) -> int:
    return int(tf.as_dtype(variable.dtype).size)


def _nbytes(variable: Any) -> int:
    return int(math.prod(variable.shape)) * _itemsize(variable)
