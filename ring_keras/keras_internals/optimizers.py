"""Optimizers: those of a model, those inside of others, and what they hold."""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import keras
import numpy as np

from ring_keras.keras_internals.names import (
    GRADIENT_ACCUMULATOR,
    ITERATIONS,
    RMSPROP_MOMENTUM,
    SGD_MOMENTUM,
    TRAINABLE_VARIABLES,
)
from ring_keras.keras_internals.private_names import gone, private
from ring_keras.keras_internals.variables import is_keras_variable, variable_key

__all__ = [
    "accumulates",
    "accumulators",
    "build_awaited_optimizers",
    "clear_accumulators",
    "forget_state",
    "inner_optimizers",
    "innermost",
    "innermost_optimizers",
    "is_wrapper",
    "iterations",
    "optimizer_state",
    "optimizers_built",
    "optimizers_of",
    "overwrites_with_gradient",
    "require_accumulators",
    "step_count",
    "steps_done",
    "steps_done_of",
    "trainable_variables",
    "training_optimizers",
    "unfiled_state",
    "untrack_state",
    "velocities",
]


# Where `optimizers_of` looks, and the longest container that it looks into.
_WALKED = (keras.optimizers.Optimizer, keras.Model, dict, list, tuple, set)
_MOST_OPTIMIZERS = 1000


def is_wrapper(optimizer: keras.optimizers.Optimizer) -> bool:
    """Whether it hands its gradients to other optimizers.

    A `MultiOptimizer` may not know them before it is built.
    """
    return _is_multi_optimizer(optimizer) or bool(inner_optimizers(optimizer))


def inner_optimizers(
    optimizer: keras.optimizers.Optimizer,
) -> list[keras.optimizers.Optimizer]:
    """The optimizers that a wrapping one hands its gradients to."""
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is not None:
        return [inner]
    return list(optimizer.optimizers) if _is_multi_optimizer(optimizer) else []


def build_awaited_optimizers(model: keras.Model) -> None:
    """Builds the one of a model that is built, if a function gives it its optimizers.

    They are not known before, as Keras builds it in its first step.
    """
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None or not model.built:
        return
    for one in (optimizer, *inner_optimizers(optimizer)):
        if _is_multi_optimizer(one) and not one.optimizers:
            optimizer.build(model.trainable_variables)
            return


def trainable_variables(optimizer: keras.optimizers.Optimizer) -> Sequence[Any]:
    """Those it was built with; none before that."""
    found: Sequence[Any] = private(optimizer, TRAINABLE_VARIABLES)
    return found


def _is_multi_optimizer(optimizer: keras.optimizers.Optimizer) -> bool:
    # Older Keras has no such class.
    multi = getattr(keras.optimizers, "MultiOptimizer", None)
    return multi is not None and isinstance(optimizer, multi)


def overwrites_with_gradient(variable: Any) -> bool:
    """Whether Keras assigns its "gradient" to it, as in float8 training."""
    return bool(getattr(variable, "overwrite_with_gradient", False))


def optimizers_of(model: keras.Model) -> list[keras.optimizers.Optimizer]:
    """The compiled optimizer, and others a custom model keeps (as GANs do).

    Those in attributes, in lists and dicts there, and of models in it. Nobody keeps
    them in a container with thousands of things, such as a vocabulary.
    """
    found: dict[int, keras.optimizers.Optimizer] = {}
    seen: set[int] = set()
    waiting: deque[Any] = deque([model])
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None:
        waiting.appendleft(optimizer)
    waiting += _models_in(model)
    while waiting:
        value = waiting.popleft()
        if isinstance(value, keras.optimizers.Optimizer):
            found.setdefault(id(value), value)
        elif id(value) not in seen:
            seen.add(id(value))
            if isinstance(value, keras.Model):
                value = vars(value)
            elif len(value) > _MOST_OPTIMIZERS:
                continue
            # Copied at once: other threads may add to them.
            values = list(value.values() if isinstance(value, dict) else value)
            waiting.extend(one for one in values if isinstance(one, _WALKED))
    return list(found.values())


def training_optimizers(model: keras.Model) -> list[keras.optimizers.Optimizer]:
    """Those of `optimizers_of` that train the model, and are in no other one.

    A model with optimizers of its own may have one more in `model.optimizer`: the
    default of Keras's `compile()`, which never takes a step.
    """
    found = optimizers_of(model)
    inner = {id(one) for optimizer in found for one in inner_optimizers(optimizer)}
    outer = [optimizer for optimizer in found if id(optimizer) not in inner]
    if len(outer) == 1:
        return outer
    return [o for o in outer if o is not model.optimizer or not _is_unused_default(o)]


def _is_unused_default(optimizer: keras.optimizers.Optimizer) -> bool:
    for inner in inner_optimizers(optimizer):  # Of a LossScaleOptimizer.
        return _is_unused_default(inner)
    if type(optimizer) is not keras.optimizers.RMSprop or steps_done(optimizer):
        return False
    default = keras.optimizers.RMSprop(name=optimizer.name)
    return bool(optimizer.get_config() == default.get_config())


def steps_done_of(model: keras.Model) -> int | None:
    """How many steps a model has been trained for; None if it has no optimizer."""
    return max(map(steps_done, training_optimizers(model)), default=None)


def innermost_optimizers(model: keras.Model) -> list[keras.optimizers.Optimizer]:
    """Those of `optimizers_of`, or in them, that apply gradients themselves."""
    return innermost(optimizers_of(model))


def innermost(
    optimizers: Iterable[keras.optimizers.Optimizer],
) -> list[keras.optimizers.Optimizer]:
    """Those of these, or in them, that apply gradients themselves."""
    found: dict[int, keras.optimizers.Optimizer] = {}
    waiting = list(optimizers)
    while waiting:
        optimizer = waiting.pop(0)
        inner = inner_optimizers(optimizer)
        waiting += inner
        if not inner:
            found.setdefault(id(optimizer), optimizer)
    return list(found.values())


def optimizer_state(optimizer: keras.optimizers.Optimizer) -> list[keras.Variable]:
    """What one of Keras's, that updates variables itself, has got when it was built."""
    rate = optimizer.learning_rate
    count = iterations(optimizer)
    return [v for v in optimizer.variables if v is not count and v is not rate]


def forget_state(optimizer: keras.optimizers.Optimizer) -> list[keras.Variable]:
    """Makes a built one as it was before it was built; returns its state."""
    state = optimizer_state(optimizer)
    for variable in state:
        optimizer._untrack_variable(variable)
    optimizer.built = False
    return state


def unfiled_state(
    optimizers: Iterable[keras.optimizers.Optimizer],
) -> dict[tuple[int, str], keras.Variable]:
    """What these, or those in them, keep beside `variables`, and so beside files.

    Keras leaves it out where a `LossScaleOptimizer` builds the optimizer inside: there
    it does not track what that one keeps in an attribute, such as Nadam's product of
    all its steps.

    Returns:
        By the place of the optimizer among the innermost ones, and by attribute.
    """
    found = {}
    for place, optimizer in enumerate(innermost(optimizers)):
        known = [*optimizer.variables, *trainable_variables(optimizer)]
        keys = set(map(variable_key, known))
        for name, value in vars(optimizer).items():
            if is_keras_variable(value) and variable_key(value) not in keys:
                found[place, name] = value
    return found


def untrack_state(optimizer: keras.optimizers.Optimizer, name: str) -> keras.Variable:
    """Leaves an attribute of a built one out of `variables`; returns what it has."""
    variable: keras.Variable = getattr(optimizer, name)
    optimizer._untrack_variable(variable)
    return variable


def accumulates(variable: Any) -> bool:
    """Whether it is an optimizer's, and has a rank's own gradients until an update."""
    return GRADIENT_ACCUMULATOR in variable.name


def accumulators(
    optimizers: Iterable[keras.optimizers.Optimizer],
) -> list[keras.Variable]:
    """All that accumulate, of these optimizers and of those in them."""
    found = [v for one in optimizers for v in one.variables if accumulates(v)]
    return list({variable_key(variable): variable for variable in found}.values())


def require_accumulators(optimizer: keras.optimizers.Optimizer) -> None:
    """Raises if a built one that accumulates has nothing that we know for it.

    Ranks would else take each other's gradients for what all have in common.

    Raises:
        RingKerasError: Names what is missing.
    """
    wanted = optimizer.gradient_accumulation_steps and trainable_variables(optimizer)
    if wanted and not accumulators([optimizer]):
        raise gone([f"{type(optimizer).__name__}'s variables {GRADIENT_ACCUMULATOR}"])


def clear_accumulators(variables: Iterable[Any]) -> None:
    """Has these of `accumulators` begin anew."""
    for variable in variables:
        variable.assign(np.zeros(variable.shape, variable.dtype))


def optimizers_built(model: keras.Model) -> bool:
    """Whether all of them have their variables."""
    return all(optimizer.built for optimizer in optimizers_of(model))


def _models_in(model: keras.Model) -> list[keras.Model]:
    return [
        layer
        for layer in model._flatten_layers(include_self=False)
        if isinstance(layer, keras.Model)
    ]


def velocities(optimizer: keras.optimizers.Optimizer) -> list[keras.Variable]:
    """The momentum variables that hold gradients times the learning rate.

    None before the optimizer is built. Those of Adam and others hold gradients
    alone.
    """
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    found: Sequence[keras.Variable] = ()
    if not optimizer.built:
        return []
    if isinstance(optimizer, keras.optimizers.SGD):
        found = private(optimizer, SGD_MOMENTUM)
    elif isinstance(optimizer, keras.optimizers.RMSprop):
        found = private(optimizer, RMSPROP_MOMENTUM)
    return list(found)


def steps_done(optimizer: keras.optimizers.Optimizer) -> int:
    """How many steps it has taken, those included that only accumulated.

    A `LossScaleOptimizer` leaves out steps that it skipped, unless `step_count` has
    been counted up in them. A `DiLoCo` leaves out those that its rank alone has taken.
    """
    counted: int | None = getattr(optimizer, "steps_counted", None)
    if counted is not None:
        return counted
    inner = inner_optimizers(optimizer)
    if inner and not _is_multi_optimizer(optimizer):
        return max(steps_done(inner[0]), int(private(optimizer, ITERATIONS)))
    return int(private(optimizer, ITERATIONS))


def iterations(optimizer: keras.optimizers.Optimizer) -> keras.Variable:
    """Counts the steps of one that applies gradients itself.

    Those included that only accumulated, which its property `iterations` leaves out.
    """
    count: keras.Variable = private(optimizer, ITERATIONS)
    return count


def step_count(optimizer: keras.optimizers.Optimizer) -> keras.Variable | None:
    """A variable that a `LossScaleOptimizer` saves and has no use for itself.

    Its `iterations` are those of the optimizer in it. None for other optimizers.
    """
    if not isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return None
    count: keras.Variable = private(optimizer, ITERATIONS)
    return count
