"""Adafactor's means over the rows and columns of a matrix.

It adds them without saying of which variable they are, and names them as the variable
is named in its layer. So they are known by their place.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import keras

from ring_keras.keras_internals.names import COLUMN_MEANS, ROW_MEANS
from ring_keras.keras_internals.optimizers import (
    overwrites_with_gradient,
    trainable_variables,
)
from ring_keras.keras_internals.private_names import gone, private
from ring_keras.keras_internals.variables import variable_key

__all__ = [
    "Means",
    "expected_means",
    "means_of",
    "next_mean",
    "untrack_placeholders",
    "untracked_placeholders",
]

Means: TypeAlias = deque[tuple[Any, tuple[int, ...]]]
"""Of each mean that is still to be added: the variable that it is of, and its shape."""


def expected_means(
    optimizer: keras.optimizers.Optimizer, variables: Sequence[Any]
) -> Means | None:
    """What `build` of these variables will add; None if this is no Adafactor."""
    if not isinstance(optimizer, keras.optimizers.Adafactor):
        return None
    found: Means = deque()
    for variable in variables:
        shape = tuple(variable.shape)
        if len(shape) >= 2 and not overwrites_with_gradient(variable):
            found.append((variable, shape[:-1]))
            found.append((variable, (*shape[:-2], shape[-1])))
    return found


def next_mean(means: Means, shape: Sequence[int]) -> Any:
    """The variable of which a mean of that shape is that Keras adds now.

    Raises:
        RingKerasError: If another one is expected.
    """
    if means:
        variable, expected = means.popleft()
        if expected == tuple(shape):
            return variable
    raise gone(["Adafactor's order of means in build()"])


def means_of(optimizer: keras.optimizers.Optimizer) -> Iterator[tuple[Any, Any]]:
    """Each that a built one has, with the variable that it is of."""
    if not isinstance(optimizer, keras.optimizers.Adafactor) or not optimizer.built:
        return
    for name in (ROW_MEANS, COLUMN_MEANS):
        means = private(optimizer, name)
        for variable, mean in zip(trainable_variables(optimizer), means, strict=True):
            if mean is not None:
                yield mean, variable


def untracked_placeholders(optimizer: keras.optimizers.Optimizer) -> list[Any]:
    """What it has in place of means, for vectors, and not among its `variables`.

    As where a `LossScaleOptimizer` has built it.
    """
    known = set(map(variable_key, optimizer.variables))
    return [mean for mean, _ in means_of(optimizer) if variable_key(mean) not in known]


def untrack_placeholders(optimizer: keras.optimizers.Optimizer) -> None:
    """Takes them out of its `variables`."""
    for mean, variable in means_of(optimizer):
        if len(variable.shape) < 2:
            optimizer._untrack_variable(mean)
