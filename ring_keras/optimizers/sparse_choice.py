"""Whether a sparse gradient is gathered or made dense, by what either costs."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from ring_keras import _native
from ring_keras.job.process_set import ProcessSet

__all__ = ["Choice", "SparseGradient", "choose_dense"]

# For a number of rows that is known only when the step runs.
_UNKNOWN = -1


@dataclass(frozen=True)
class SparseGradient:
    """What this rank knows of one sparse gradient when its step is traced.

    Attributes:
        rows: Number of its slices; None if that varies.
        row_nbytes: Size of one, with its index.
        dense_nbytes: Size of the whole variable; None if unknown.
    """

    rows: int | None
    row_nbytes: int
    dense_nbytes: int | None

    @classmethod
    def of(cls, gradient: tf.IndexedSlices) -> "SparseGradient":
        """Describes a gradient."""
        row = gradient.values.shape[1:].num_elements()
        whole = gradient.shape.num_elements()
        itemsize = gradient.values.dtype.size
        return cls(
            gradient.values.shape[0],
            0 if row is None else row * itemsize + gradient.indices.dtype.size,
            None if whole is None or row is None else whole * itemsize,
        )


@dataclass(frozen=True)
class Choice:
    """What is the same of one sparse gradient on all ranks.

    Attributes:
        rows: The largest number of slices of any rank; None if one does not know its.
        costs_less: Whether it does if it is made dense.
    """

    rows: int | None
    costs_less: bool


def choose_dense(
    gradients: Sequence[SparseGradient], process_set: ProcessSet
) -> list[Choice]:
    """Says which gradients cost less if they are made dense; collective.

    An allgather brings every rank the slices of all others; an allreduce moves
    the whole variable about twice, and keeps to that with more ranks. Ranks may
    have different numbers of rows, so all of them are compared; where one does
    not know its number, the gradient stays sparse.

    Args:
        gradients: This rank's; as many on every rank.
        process_set: The ranks that reduce gradients together.

    Returns:
        One answer per gradient, the same on every rank.
    """
    rows = [
        _UNKNOWN if g.rows is None or g.dense_nbytes is None else g.rows
        for g in gradients
    ]
    of_all = _native.allgather(
        np.array([rows], np.int64),
        "gradients/plan/rows",
        process_set.communicator_id(),
    )
    choices = []
    for gradient, column in zip(gradients, of_all.T, strict=True):
        if (column == _UNKNOWN).any():
            choices.append(Choice(None, costs_less=False))
            continue
        sparse_nbytes = int(column.sum()) * gradient.row_nbytes
        choices.append(
            Choice(int(column.max()), sparse_nbytes > 2 * (gradient.dense_nbytes or 0))
        )
    return choices
