"""What all ranks have the same of; whoever copies or compares it asks here."""

from collections.abc import Iterable, Sequence
from typing import Any

import keras

from ring_keras import keras_internals as internals
from ring_keras.ops.shards import shard_of
from ring_keras.states.local_variables import IsLocal, kept_for_local

__all__ = [
    "common_accumulators",
    "common_state",
    "common_variables",
    "common_weights",
    "own_accumulators",
    "split_weights",
]


def common_variables(
    model: keras.Model, is_local: IsLocal = lambda variable: False
) -> list[Any]:
    """A model's common weights, and the common state of its optimizers.

    Args:
        model: The model.
        is_local: Whether each rank has its own value of a weight, by intent. Then it
            has its own of what an optimizer keeps for that weight, too.
    """
    optimizers = internals.optimizers_of(model)
    return _unique(
        [
            *common_weights(model, is_local),
            *common_state(optimizers, model.weights, is_local),
        ]
    )


def common_weights(
    model: keras.Model, is_local: IsLocal = lambda variable: False
) -> list[Any]:
    """Those of a model that all ranks have the same of.

    Random generators and metrics have no weights. The states of recurrent layers with
    `stateful=True` belong to the samples that the rank has seen last.
    """
    of_samples = {id(variable) for variable in internals.recurrent_states(model)}
    return [v for v in model.weights if id(v) not in of_samples and not is_local(v)]


def split_weights(model: keras.Model, is_local: IsLocal) -> tuple[list[Any], list[Any]]:
    """The weights that all ranks should have the same of, of two kinds.

    Returns:
        The variables that layers change by themselves, such as moving statistics;
        and those that only the optimizer does, with those of frozen layers.
    """
    trained = {id(v) for v in model.trainable_weights}
    trained |= {id(v) for v in internals.frozen_weights(model)}
    common = common_weights(model, is_local)
    return (
        [v for v in common if id(v) not in trained],
        [v for v in common if id(v) in trained],
    )


def common_state(
    optimizers: Iterable[keras.optimizers.Optimizer],
    weights: Sequence[Any],
    is_local: IsLocal = lambda variable: False,
) -> list[Any]:
    """Variables of optimizers that all ranks have the same of.

    None of them are: what accumulates a rank's own gradients until an update, what one
    rank has of a divided state, and what ranks that train apart have not sent yet.

    Args:
        optimizers: The optimizers.
        weights: What they may train.
        is_local: See `common_variables`.
    """
    optimizers = list(optimizers)
    own = set(map(id, own_accumulators(optimizers)))
    variables = _unique(
        [
            *(v for optimizer in optimizers for v in optimizer.variables),
            *internals.unfiled_state(optimizers).values(),
        ]
    )
    left = {
        id(variable)
        for optimizer in optimizers
        for variable in getattr(optimizer, "residuals", ())
    }
    of_local = kept_for_local(optimizers, weights, is_local)
    return [
        variable
        for variable in variables
        if id(variable) not in own
        and shard_of(variable) is None
        and id(variable) not in left
        and not is_local(variable)
        and not of_local(variable)
    ]


def common_accumulators(
    optimizers: Iterable[keras.optimizers.Optimizer],
) -> list[Any]:
    """What accumulates gradients that the ranks have reduced before, in each pass.

    So it is inside of what hands its gradients to several optimizers. A
    `LossScaleOptimizer` leaves that to the one inside, if that one accumulates.
    """
    found: list[Any] = []
    waiting = [(optimizer, False) for optimizer in optimizers]
    while waiting:
        optimizer, are_reduced = waiting.pop(0)
        inner = internals.inner_optimizers(optimizer)
        if not inner and are_reduced:
            found += internals.accumulators([optimizer])
        if not inner or hasattr(optimizer, "residuals"):  # Its ranks train apart.
            continue
        leaves_it = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
        leaves_it = leaves_it and not internals.is_wrapper(inner[0])
        # One that is not hooked, as before `fit`, reduces nothing itself.
        is_hooked = internals.replacement(optimizer, internals.BUILD) is not None
        reduces = is_hooked and not leaves_it
        waiting += [(one, are_reduced or reduces) for one in inner]
    return _unique(found)


def own_accumulators(optimizers: Iterable[keras.optimizers.Optimizer]) -> list[Any]:
    """What accumulates a rank's own gradients, until they are reduced."""
    optimizers = list(optimizers)
    common = set(map(id, common_accumulators(optimizers)))
    return [v for v in internals.accumulators(optimizers) if id(v) not in common]


def _unique(variables: Iterable[Any]) -> list[Any]:
    return list({internals.variable_key(v): v for v in variables}.values())
