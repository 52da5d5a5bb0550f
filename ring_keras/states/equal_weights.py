"""Finds weights that have come apart, which equal updates never do."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from absl import logging

from ring_keras import _native
from ring_keras.errors import RankMismatchError
from ring_keras.job.process_set import ProcessSet
from ring_keras.states.first_ranks import take_first_ranks
from ring_keras.states.weight_digests import variable_name, who_has_what
from ring_keras.values.reduce_op import ReduceOp

__all__ = ["require_equal"]


def require_equal(
    variables: Sequence[Any],
    digests: np.ndarray[Any, Any],
    when: str,
    process_set: ProcessSet,
    following: Sequence[Any] = (),
) -> None:
    """Raises if the ranks' weights differ by more than rounding; collective then.

    Ranks apply the same gradients, so weights differ if something trains them past
    our reduction. Rounding alone differs where ranks compute the same sum in another
    order, as on a GPU with sparse gradients: they take the first rank's value then,
    and say so.

    Args:
        variables: Trainable ones, in the same order on every rank.
        digests: Those of `all_digests`, a column for each of them.
        when: For the message, such as "after the first epoch".
        process_set: The ranks that train together.
        following: Variables that have rounded differently where weights have, such
            as an optimizer's averages of them. They are not compared.

    Raises:
        RankMismatchError: On every rank. Names the first variable that differs.
    """
    differ = (digests != digests[0]).any(axis=0)
    columns = np.flatnonzero(differ).tolist()
    if not columns:
        return
    differing = [variables[column] for column in columns]
    apart = _far_apart(differing, process_set)
    if apart is None:
        if process_set.rank() == 0:
            logging.warning(
                "ring_keras: [RK328] "
                "fit(): %s, %d of the ranks' weights differ by rounding, "
                "first '%s'. All ranks take rank %d's.",
                when,
                len(differing),
                variable_name(differing[0]),
                process_set.ranks[0],
            )
        take_first_ranks([*differing, *following], "weights/rounding", process_set)
        return
    column = columns[apart]
    raise RankMismatchError(
        "[RK324] "
        f"fit(): {when}, variable '{variable_name(variables[column])}' differs across "
        f"ranks: {who_has_what(digests[:, column], process_set.ranks)} "
        f"({len(columns)} of {len(variables)} variables differ). Something trains it "
        "on each rank alone. Make every optimizer a ring_keras.DistributedOptimizer, "
        "or every gradient tape a ring_keras.DistributedGradientTape, and load weights "
        "on all ranks or before fit(). Give callbacks that change weights or learning "
        "rates, such as EarlyStopping(restore_best_weights=True), to every rank, and "
        "validation data too. If nothing does, a rank computes wrong results: test its "
        "host's memory and devices. For a variable that shall differ between ranks, "
        "use DistributedOptimizer(local_layers=...), or "
        "BroadcastGlobalVariables(local_variables=...)."
    )


def _far_apart(variables: Sequence[Any], process_set: ProcessSet) -> int | None:
    """The first that differs by more than rounding; the same on every rank."""
    distances = []
    for index, variable in enumerate(variables):
        value = np.asarray(variable.numpy()).astype(np.float64).ravel()
        lowest, highest = (
            _native.allreduce(
                value,
                op=op.value,
                name=f"weights/{op.value}{index}",
                communicator_id=process_set.communicator_id(),
            )
            for op in (ReduceOp.MIN, ReduceOp.MAX)
        )
        magnitude = max(np.abs(lowest).max(), np.abs(highest).max())
        distances.append(float((highest - lowest).max() / (magnitude or 1.0)))
    for index, (variable, distance) in enumerate(
        zip(variables, distances, strict=True)
    ):
        if not distance <= _rounding(variable):  # A NaN is no rounding.
            return index
    return None


def _rounding(variable: Any) -> float:
    """What many roundings may add up to, relative to the largest element.

    The root of the distance between 1 and the next number.
    """
    dtype = keras.backend.standardize_dtype(variable.dtype)
    if not keras.backend.is_float_dtype(dtype):
        return 0.0
    return {"float64": 2.0**-26, "float32": 2.0**-12}.get(dtype, 2.0**-4)
