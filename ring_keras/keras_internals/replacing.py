"""Methods replaced on one instance."""

from collections.abc import Callable
from typing import Any

import keras

from ring_keras.keras_internals import names
from ring_keras.keras_internals.optimizers import inner_optimizers, optimizers_of
from ring_keras.keras_internals.private_names import require_method

__all__ = ["remove_replacements", "replace", "replacement", "restore"]

# Of models, layers and optimizers, for longer than a step.
_REPLACED = (
    names.APPLY,
    names.APPLY_WEIGHT_DECAY,
    names.BACKEND_APPLY_GRADIENTS,
    names.CHECK_FINITE,
    names.CLIP_GRADIENTS,
    names.LOAD_VARIABLES,
    names.METRICS_RESULT,
    names.MOMENTS,
    names.OVERWRITE_DIRECTLY,
    names.SAVE_VARIABLES,
    names.TAKE_AVERAGES,
    names.TEST_STEP,
    names.TRAIN_STEP,
    names.UPDATE,
    names.UPDATE_AVERAGES,
    names.USE_WEIGHT_DECAY,
    names.VARIABLE_INDEX,
)


def replace(target: Any, name: str, value: Callable[..., Any]) -> None:
    """Puts `value` before the method `name` of this one instance.

    Past `__setattr__`, so that neither Keras nor TensorFlow tracks it.

    Raises:
        RingKerasError: If its class has no such method, so that nobody calls it.
    """
    require_method(target, name)
    vars(target)[name] = value


def restore(target: Any, name: str) -> None:
    """Undoes `replace`."""
    vars(target).pop(name, None)


def replacement(target: Any, name: str) -> Any:
    """What `replace` put there, or None."""
    return vars(target).get(name)


def remove_replacements(model: keras.Model) -> None:
    """Makes the model, and what is in it, as Keras alone would have made it."""
    targets = [model, *model._flatten_layers(include_self=False)]
    waiting = optimizers_of(model)
    while waiting:
        optimizer = waiting.pop()
        targets.append(optimizer)
        restore(optimizer, names.BUILD)  # A layer's own is Keras's doing.
        waiting += inner_optimizers(optimizer)
    for target in targets:
        for name in _REPLACED:
            restore(target, name)
    model.train_function = None
    model.test_function = None
