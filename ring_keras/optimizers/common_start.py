"""Ranks that begin to train some variables begin with the same values.

A `fit` with `BroadcastGlobalVariables`, or a loop with `broadcast_variables`, sees to
that by itself. Where only the optimizer or the tape is ours, ranks that were
seeded differently would apply equal updates to different weights for ever. So they
compare what they have when they first reduce the gradients of some variables.
"""

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from ring_keras import keras_internals as internals
from ring_keras.errors import RankMismatchError
from ring_keras.job.job import current_job
from ring_keras.job.process_set import ProcessSet
from ring_keras.keras_internals import calls
from ring_keras.ops.broadcast_variables import broadcast_variables
from ring_keras.ops.common_order import note_places, require_common_order
from ring_keras.ops.data_order import living_orders, require_common_orders
from ring_keras.ops.join import agreed_without_all
from ring_keras.optimizers.common_variables import common_state, common_weights
from ring_keras.optimizers.parts_of_one_state import (
    is_divided,
    parts_of_different_states,
)
from ring_keras.optimizers.plan_agreement import Agreement
from ring_keras.states.common_layers import agree_on_layers
from ring_keras.states.weight_digests import all_digests, differing, variable_name

__all__ = ["left_to_caller", "set_started", "start_alike"]

# Set on a TensorFlow variable: by the key of a process set, the generation in which its
# ranks have begun to train it. Those of another set may be at another variable.
_MARK = "_ring_keras_started_in"


class _Left(threading.local):
    active = False


_left = _Left()


@contextlib.contextmanager
def left_to_caller() -> Iterator[None]:
    """Nothing is compared inside: the caller broadcasts what there is."""
    before, _left.active = _left.active, True
    try:
        yield
    finally:
        _left.active = before


def set_started(variables: Iterable[Any], process_set: ProcessSet) -> None:
    """Notes that the ranks need not compare these."""
    for variable in variables:
        attributes = vars(internals.tensorflow_variable(variable))
        marks = attributes.setdefault(_MARK, {})
        marks[process_set.key()] = current_job().generation


def start_alike(
    sources: Sequence[Any],
    is_local: Callable[[Any], bool],
    agreement: Agreement,
    process_set: ProcessSet,
) -> None:
    """Gives variables the first rank's values, if the ranks' differ.

    Ranks meet new variables together, when they trace the first step that trains
    them, or run it eagerly. A step that is traced is not under way yet, so what
    ranks take here is what it runs with.

    Besides the sources these are the weights and optimizers of the model whose step
    it is, where a model's is.

    Args:
        sources: What gradients are taken of.
        is_local: Whether a variable is one that each rank trains by itself.
        agreement: On the gradients' plan.
        process_set: The ranks that reduce the gradients; all call this.

    Raises:
        RankMismatchError: On every rank, if the ranks read their parts of some data
            in different orders, or have the same variables in different orders, or if
            layers of the model have other vocabularies, or had other constants.
    """
    trained = [v for v in sources if internals.is_variable(v) and not is_local(v)]
    if _left.active or all(_has_started(v, process_set) for v in trained):
        return
    without_all = agreed_without_all.of(current_job())[process_set.communicator_id()]
    if agreement.digest in without_all:
        return  # Ranks that were in join() then would ask alone later.
    traced = not tf.executing_eagerly()
    with tf.init_scope():
        if not tf.executing_eagerly():
            return  # A graph of TensorFlow 1, whose variables have no values yet.
        model = calls.calling_model()
        weights = _with_model(trained, model, is_local)
        variables = _unique([*weights, *_of_optimizers(trained, model, is_local)])
        if not all(map(_has_value, variables)):
            return  # TensorFlow traces once more, with values.
        names = list(map(variable_name, weights))
        require_common_order(names, "gradients/start", process_set)
        digests = all_digests(variables, "gradients/start", process_set)
        if len(digests) < process_set.size():
            without_all[agreement.digest] = agreement.number
            return
        require_common_orders(living_orders(process_set), process_set)
        changing = differing(variables, digests)
        before = None if model is None else internals.constants(model)
        _require_same_steps(changing, model)
        if changing:
            _say(changing, traced, process_set)
            broadcast_variables(
                changing,
                process_set.ranks[0],
                name="gradients/start",
                process_set=process_set,
            )
        note_places(variables, process_set)
        set_started(variables, process_set)
        if model is not None and agree_on_layers(
            model,
            is_local,
            "gradients/layers",
            process_set,
            who="the first step",
            are_new=internals.constants(model) != before,
        ):
            _require_untraced(traced, process_set)


def _require_same_steps(differing: list[Any], model: keras.Model | None) -> None:
    """Where ranks have parts of an optimizer's state, they are of the same state."""
    keys = set(map(internals.variable_key, differing))
    for optimizer in internals.innermost(_optimizers(model)):
        count = internals.iterations(optimizer)
        if is_divided([optimizer]) and internals.variable_key(count) in keys:
            raise parts_of_different_states(
                f"ranks have taken different numbers of steps with '{optimizer.name}'"
            )


def _require_untraced(traced: bool, process_set: ProcessSet) -> None:
    """The step that is being traced has the old constants of layers in it."""
    if traced:
        raise RankMismatchError(
            "[RK333] "
            "before the first step, variables from which a layer such as Normalization "
            "derives constants differed across ranks. All ranks have now taken rank "
            f"{process_set.ranks[0]}'s, but this step is traced with the old ones. "
            "Call ring_keras.broadcast_variables(model.weights) before the first step."
        )


def _with_model(
    trained: list[Any], model: keras.Model | None, is_local: Callable[[Any], bool]
) -> list[Any]:
    of_model = [] if model is None else common_weights(model, is_local)
    return _unique([*trained, *of_model])


def _of_optimizers(
    trained: list[Any], model: keras.Model | None, is_local: Callable[[Any], bool]
) -> list[Any]:
    weights = trained if model is None else model.weights
    return common_state(_optimizers(model), weights, is_local)


def _optimizers(model: keras.Model | None) -> list[keras.optimizers.Optimizer]:
    """Those of the model, and the one that is under way."""
    optimizers = [] if model is None else internals.optimizers_of(model)
    optimizer = calls.calling_optimizer()
    if optimizer is not None:
        optimizers.append(optimizer)
    return optimizers


def _unique(variables: Iterable[Any]) -> list[Any]:
    unique = {internals.variable_key(variable): variable for variable in variables}
    return list(unique.values())


def _say(differing: list[Any], traced: bool, process_set: ProcessSet) -> None:
    if process_set.rank() != 0:
        return
    logging.warning(
        "ring_keras: [RK328] "
        "before the first step the ranks' variables differed: '%s'%s. All "
        "ranks have taken rank %d's.%s Use ring_keras.callbacks."
        "BroadcastGlobalVariables() in fit(), or ring_keras.broadcast_variables() "
        "before the first step of a loop.",
        variable_name(differing[0]),
        f" and {len(differing) - 1} more" if len(differing) > 1 else "",
        process_set.ranks[0],
        ""
        if traced
        else " The gradients of this one step are those at the old values.",
    )


def _has_started(variable: Any, process_set: ProcessSet) -> bool:
    marks = vars(internals.tensorflow_variable(variable)).get(_MARK, {})
    return bool(marks.get(process_set.key()) == current_job().generation)


def _has_value(variable: Any) -> bool:
    return bool(internals.tensorflow_variable(variable).is_initialized())
