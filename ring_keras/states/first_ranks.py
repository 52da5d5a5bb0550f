"""All ranks take the first one's values of variables."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ring_keras import _native
from ring_keras import keras_internals as internals
from ring_keras.job.process_set import ProcessSet

__all__ = ["take_first_ranks"]


def take_first_ranks(
    variables: Sequence[Any], name: str, process_set: ProcessSet, *, root: int = 0
) -> None:
    """Those of another one, if asked; one collective for each dtype.

    Args:
        variables: With values of the same shapes, in the same order on every rank.
        name: Of the collectives.
        process_set: The ranks; all call this.
        root: The place among them of the one whose values all take.
    """
    by_dtype: dict[str, list[tuple[Any, np.ndarray[Any, Any]]]] = {}
    for variable in variables:
        value = np.asarray(variable.numpy())
        by_dtype.setdefault(value.dtype.name, []).append((variable, value))
    is_root = process_set.rank() == root
    for dtype, pairs in by_dtype.items():
        flat = np.concatenate([value.ravel() for _, value in pairs])
        flat = _native.broadcast(
            flat, root, f"{name}/{dtype}", process_set.communicator_id()
        )
        if is_root:  # It has them.
            continue
        ends = np.cumsum([value.size for _, value in pairs])[:-1]
        for (variable, value), part in zip(pairs, np.split(flat, ends), strict=True):
            variable.assign(part.reshape(value.shape))
    internals.finalize_layers(variables)
