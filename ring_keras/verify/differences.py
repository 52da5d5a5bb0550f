"""Where two states differ by more than rounding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ring_keras.verify.state import Array

__all__ = ["Difference", "differences", "relative_tolerance", "rounding_noise"]

# Of the update that a step makes to a variable, by the type that layers compute in.
_RELATIVE = {"float64": 1e-8, "float32": 1e-4, "float16": 1e-2, "bfloat16": 3e-2}
# As many times what another order of the examples changes.
_NOISE_FACTOR = 10.0
# Roundings of a stored value to its type.
_ROUNDINGS = 4.0
# How little may be left of an update, once multiplied, for that to be the reason.
_EXPLAINED = 0.02


@dataclass(frozen=True)
class Difference:
    """One variable that N ranks have changed otherwise than one process.

    Attributes:
        name: Its name.
        largest: Of the differences of its elements.
        relative: How large they are together, beside the update of one process.
        factor: How many times that update the ranks made, if that is all.
    """

    name: str
    largest: float
    relative: float
    factor: float | None


def relative_tolerance(compute_dtype: str) -> float:
    """How far an update may be off, where layers compute in this type."""
    return _RELATIVE.get(compute_dtype, _RELATIVE["float32"])


def rounding_noise(
    one: Sequence[Sequence[Array]], others: Sequence[Sequence[Sequence[Array]]]
) -> list[float]:
    """What rounding does to each variable, estimated by other orders of the examples.

    It is much where a gradient is nearly zero and the optimizer divides it by its size.
    There an order may round as the first one does by chance, so the largest difference
    of all orders and all steps counts.

    Args:
        one: What one process made of the variables in each step.
        others: The same with the examples in other orders.
    """
    distances = [
        [_distance(*pair) for pair in zip(*states, strict=True)]
        for other in others
        for states in zip(one, other, strict=True)
    ]
    # A step that ends in no numbers says nothing of the others.
    return [
        max(filter(math.isfinite, of_variable), default=0.0)
        for of_variable in zip(*distances, strict=True)
    ]


def differences(
    names: Sequence[str],
    before: Sequence[Array],
    ranks: Sequence[Array],
    one: Sequence[Array],
    noise: Sequence[float],
    tolerance: float,
) -> list[Difference]:
    """Compares what a step made of each variable, the most different first.

    Args:
        names: Of the variables.
        before: Their values before the step.
        ranks: What N ranks made of them.
        one: What one process made of them.
        noise: See `rounding_noise`.
        tolerance: Relative to the update.
    """
    found = []
    for name, rounding, *values in zip(names, noise, before, ranks, one, strict=True):
        eps = _epsilon(values[1])
        start, got, expected = (np.asarray(v, np.float64) for v in values)
        update = expected - start
        distance = _norm(got - expected)
        limit = tolerance * _norm(update) + _NOISE_FACTOR * rounding
        limit += _ROUNDINGS * eps * _norm(expected)
        # Written so that a NaN differs.
        if distance <= limit or np.array_equal(got, expected, equal_nan=True):
            continue
        found.append(
            Difference(
                name,
                float(np.max(np.abs(got - expected))),
                distance / _norm(update) if _norm(update) else float("inf"),
                _factor(got - start, update),
            )
        )
    return sorted(found, key=lambda one: -one.relative)


def _factor(got: Array, expected: Array) -> float | None:
    size = _norm(expected)
    if not size or not np.isfinite(size) or not np.isfinite(_norm(got)):
        return None
    factor = float(np.vdot(expected, got)) / size**2
    left = _norm(got - factor * expected)
    return factor if left <= _EXPLAINED * _norm(got) else None


def _distance(one: Array, other: Array) -> float:
    return _norm(np.asarray(one, np.float64) - np.asarray(other, np.float64))


def _norm(values: Array) -> float:
    return float(np.linalg.norm(values.ravel()))


def _epsilon(values: Array) -> float:
    if values.dtype.kind in "iub":
        return 0.0
    if values.dtype.kind == "f":
        return float(np.finfo(values.dtype).eps)
    return 2.0**-7  # bfloat16, which NumPy does not know.
