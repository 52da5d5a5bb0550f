"""State of layers that steps change without the optimizer: one for all ranks."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from absl import logging

from ring_keras import _native
from ring_keras import keras_internals as internals
from ring_keras.errors import RankMismatchError
from ring_keras.job.process_set import ProcessSet
from ring_keras.states.first_ranks import take_first_ranks
from ring_keras.states.weight_digests import variable_name, who_has_what
from ring_keras.values.reduce_op import ReduceOp

__all__ = ["agree_on_state", "warn_of_averages"]


# Why ranks may differ though all variables follow from the number of steps alone.
_OF_JOINED_DATA = (
    " These data are joined (ring_keras.data.join): a rank whose data have ended takes "
    "part in steps of the others that change no state of its layers, so what counts "
    "steps is another number there."
)


def agree_on_state(
    variables: Sequence[Any],
    digests: np.ndarray[Any, Any],
    process_set: ProcessSet,
    *,
    is_joined: bool,
) -> list[str]:
    """Gives all ranks one value of each variable that differs; collective then.

    What it is, the variable's own `aggregation` says, as in Keras: "mean", or
    "only_first_replica" for the first rank's. Where that is "none", the default,
    floating-point numbers are averaged.

    Args:
        variables: State of layers, in the same order on every rank.
        digests: Those of `all_digests`, a column for each of them.
        process_set: The ranks that train together.
        is_joined: Whether they train on data of `ring_keras.data.join`.

    Returns:
        Names of the variables that were averaged without having said so.

    Raises:
        RankMismatchError: On every rank, for a variable of which ranks cannot make
            one: of integers, or to be summed.
    """
    columns = np.flatnonzero((digests != digests[0]).any(axis=0)).tolist()
    averaged, taken, unsaid = [], [], []
    for column in columns:
        variable = variables[column]
        aggregation = getattr(variable, "aggregation", "none") or "none"
        is_floating = keras.backend.is_float_dtype(variable.dtype)
        if aggregation == "only_first_replica":
            taken.append(variable)
        elif aggregation == "sum" or not is_floating:
            raise RankMismatchError(
                "[RK325] "
                + _no_common_value(
                    variable, aggregation, digests[:, column], process_set
                )
                + (_OF_JOINED_DATA if is_joined else "")
            )
        else:
            averaged.append(variable)
            if aggregation == "none":
                unsaid.append(variable_name(variable))
    if taken:
        take_first_ranks(taken, "layer_state", process_set)
    if averaged:
        _average(averaged, process_set)
    return unsaid


def warn_of_averages(names: Sequence[str], *, is_joined: bool) -> None:
    """Says that state is averaged, and how to choose; see `agree_on_state`."""
    logging.warning(
        "ring_keras: [RK650] "
        "steps change %s on each rank by that rank's data. They are "
        "averaged over the ranks at the end of every epoch. If that is right, say so "
        "with add_weight(aggregation='mean'); 'only_first_replica' takes the first "
        "rank's, BroadcastGlobalVariables(local_variables=...) leaves each rank its "
        "own.%s",
        ", ".join(f"'{name}'" for name in names),
        _OF_JOINED_DATA if is_joined else "",
    )


def _average(variables: Sequence[Any], process_set: ProcessSet) -> None:
    values = [np.asarray(variable.numpy()) for variable in variables]
    means = _native.allreduce(
        np.concatenate([value.astype(np.float64).ravel() for value in values]),
        op=ReduceOp.AVERAGE.value,
        name="layer_state/mean",
        communicator_id=process_set.communicator_id(),
    )
    ends = np.cumsum([value.size for value in values])[:-1]
    parts = np.split(means, ends)
    for variable, value, part in zip(variables, values, parts, strict=True):
        variable.assign(part.reshape(value.shape).astype(value.dtype))
    internals.finalize_layers(variables)


def _no_common_value(
    variable: Any,
    aggregation: str,
    column: np.ndarray[Any, Any],
    process_set: ProcessSet,
) -> str:
    what = keras.backend.standardize_dtype(variable.dtype)
    return (
        f"fit(): steps change variable '{variable_name(variable)}' ({what}, "
        f"aggregation='{aggregation}') on each rank by that rank's data: "
        f"{who_has_what(column, process_set.ranks)}. The ranks have no common value of "
        "such a variable. Make it add_weight(aggregation='only_first_replica') to take "
        "the first rank's, or 'mean' of a floating-point dtype, or leave each rank its "
        "own with BroadcastGlobalVariables(local_variables=[...])."
    )
