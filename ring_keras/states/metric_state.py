"""The state of a model's metrics, over all ranks."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
from absl import logging

from ring_keras import _native
from ring_keras import keras_internals as internals
from ring_keras.job.process_set import ProcessSet
from ring_keras.job.topology import rank
from ring_keras.states.merging_metrics import merged_by_themselves, merging_metrics
from ring_keras.states.weight_digests import all_digests, variable_name
from ring_keras.values.objects import allgather_object
from ring_keras.values.reduce_op import ReduceOp

__all__ = ["averaged_logs", "result_of_all_ranks", "state_of_all_ranks"]

_Array = np.ndarray[Any, Any]

_CORRELATIONS = tuple(
    getattr(keras.metrics, name)
    for name in ("ConcordanceCorrelation", "PearsonCorrelation")
    if hasattr(keras.metrics, name)  # Older Keras has neither.
)


def _say_what_is_inexact(model: keras.Model) -> None:
    metrics = keras.tree.flatten([getattr(m, "metrics", m) for m in model.metrics])
    names = [
        metric.name
        for metric in metrics
        if isinstance(metric, _CORRELATIONS) and 0 in np.atleast_1d(metric.axis)
    ]
    if names and rank() == 0:
        logging.log_first_n(
            logging.WARNING,
            "ring_keras: %s: a mean of what each batch gives, which is not what one "
            "process gives on batches as large as all ranks' together. All ranks "
            "report the same.",
            1,
            ", ".join(names),
        )


@contextmanager
def state_of_all_ranks(model: keras.Model, process_set: ProcessSet) -> Iterator[None]:
    """The metrics' state is that of all ranks inside, and this rank's after.

    How ranks' values make one, a variable's `aggregation` says: "sum", Keras's
    default for metrics, "mean", or "only_first_replica". A metric with a method
    `merge_ranks` sees to its own.

    Args:
        model: A model whose metrics have counted this rank's data.
        process_set: The ranks that have counted; all call this.

    Raises:
        ValueError: On every rank, if a variable says of itself that ranks' values do
            not make one.
    """
    _say_what_is_inexact(model)
    merging = merging_metrics(model.metrics)
    own = {id(variable) for metric in merging for variable in metric.variables}
    variables = [
        variable
        for variable in _unique(metric.variables for metric in model.metrics)
        if id(variable) not in own
    ]
    local = [np.asarray(variable.numpy()) for variable in variables]
    of_all = _combined(variables, local, process_set)
    for variable, value in zip(variables, of_all, strict=True):
        variable.assign(value)
    try:
        with merged_by_themselves(merging, process_set):
            yield
    finally:
        for variable, value in zip(variables, local, strict=True):
            variable.assign(value)


def _unique(lists: Iterable[Iterable[Any]]) -> list[Any]:
    return list({id(variable): variable for one in lists for variable in one}.values())


def _combined(
    variables: Sequence[Any], local: Sequence[_Array], process_set: ProcessSet
) -> list[_Array]:
    """One collective for each aggregation and dtype."""
    groups: dict[tuple[str, str], list[int]] = {}
    for index, variable in enumerate(variables):
        # Older Keras has no such attribute, and sums.
        aggregation = getattr(variable, "aggregation", "sum") or "none"
        groups.setdefault((aggregation, str(variable.dtype)), []).append(index)
    combined = list(local)
    communicator_id = process_set.communicator_id()
    for (aggregation, dtype), indices in sorted(groups.items()):
        group = [variables[index] for index in indices]
        if aggregation == "none":
            _require_equal(group, process_set)
            continue
        if aggregation == "mean" and not keras.backend.is_float_dtype(dtype):
            raise _no_common_value(group[0])
        flat = np.concatenate([local[index].ravel() for index in indices])
        name = f"metrics/{aggregation}/{dtype}"
        if aggregation == "only_first_replica":
            flat = _native.broadcast(flat, 0, name, communicator_id)
        else:
            op = ReduceOp.SUM if aggregation == "sum" else ReduceOp.AVERAGE
            flat = _native.allreduce(
                flat, op=op.value, name=name, communicator_id=communicator_id
            )
        ends = np.cumsum([local[index].size for index in indices])[:-1]
        for index, part in zip(indices, np.split(flat, ends), strict=True):
            combined[index] = part.reshape(local[index].shape)
    return combined


def _require_equal(variables: Sequence[Any], process_set: ProcessSet) -> None:
    """Constants of a metric are alright, such as its thresholds."""
    digests = all_digests(variables, "metrics/none", process_set)
    for variable, column in zip(variables, digests.T, strict=True):
        if (column != column[0]).any():
            raise _no_common_value(variable)


def _no_common_value(variable: Any) -> ValueError:
    what = keras.backend.standardize_dtype(variable.dtype)
    return ValueError(
        "[RK623] "
        "MetricAverage: the ranks' values of a metric's variable "
        f"'{variable_name(variable)}' ({what}, aggregation='{variable.aggregation}') "
        "cannot be combined. Let the metric create it with "
        "add_variable(aggregation='sum'), with 'mean' for a floating-point number in "
        "which all ranks count alike, or with 'only_first_replica'; give the metric a "
        "method merge_ranks(states); or leave out the metric, or MetricAverage."
    )


def averaged_logs(logs: Mapping[str, Any], process_set: ProcessSet) -> dict[str, Any]:
    """The logs with the mean of every scalar, over the ranks that have logs.

    Collective, and so is the answer whether there are any.

    Args:
        logs: This rank's; empty if it has none.
        process_set: The ranks that report together.

    Returns:
        What each rank reports; empty if no rank has logs.
    """
    scalars = {key: float(v) for key, v in logs.items() if np.ndim(v) == 0}
    of_ranks = allgather_object(
        scalars if logs else None, name="metrics/logs", process_set=process_set
    )
    having = [of_one for of_one in of_ranks if of_one is not None]
    if not having:
        return {}
    common = set.intersection(*map(set, having))
    means = {key: float(np.mean([of_one[key] for of_one in having])) for key in common}
    return {**having[0], **logs, **means}


def result_of_all_ranks(
    model: keras.Model,
    logs: Mapping[str, Any],
    local: Callable[[Mapping[str, Any]], Mapping[str, Any]],
    process_set: ProcessSet,
    *,
    has_evaluated_nothing: Callable[[], bool] = lambda: False,
    had_examples: bool = True,
) -> Mapping[str, Any]:
    """What `fit` or `evaluate` reports of all ranks' data; collective.

    Args:
        model: Whose metrics have counted this rank's data.
        logs: Of this rank's last step.
        local: Keras's own report, of the logs and of what the metrics are then.
        process_set: The ranks that report together.
        has_evaluated_nothing: Of a rank without logs: whether it had no data.
        had_examples: Whether the last step had any of this rank's own. Else its logs
            are of a row of zeros, and those of the other ranks are reported.
    """
    logs = _flat(logs)
    if not logs and has_evaluated_nothing():
        # A step that finds no data may have counted its batch nevertheless.
        model.reset_metrics()
    with state_of_all_ranks(model, process_set):
        result = local(logs)
        reports_metrics = result is not logs
        if not logs:  # This rank had no data, so it does not know.
            result = model.get_metrics_result()
        if result is not logs:
            # A metric may return its variable, of which this is the moment.
            result = keras.tree.map_structure(_value, result)
    is_of_steps = not reports_metrics and isinstance(logs, Mapping) and had_examples
    of_steps = logs if is_of_steps else {}
    return averaged_logs(of_steps, process_set) or result


def _flat(logs: Mapping[str, Any]) -> Mapping[str, Any]:
    """As Keras reports them: a step may return the dict of all compiled metrics."""
    if not isinstance(logs, Mapping):
        return logs
    flat: dict[str, Any] = {}
    for key, value in logs.items():
        flat |= _flat(value) if isinstance(value, Mapping) else {key: value}
    return flat


def _value(result: Any) -> Any:
    if internals.is_variable(result):
        return result.numpy()
    if keras.backend.backend() != "tensorflow" and keras.ops.is_tensor(result):
        # It may be the variable's memory, seen as a tensor.
        return np.array(keras.ops.convert_to_numpy(result))
    return result
