"""Which method of Keras is calling us, read off the stack."""

import math
import sys
from dataclasses import dataclass
from typing import Any

import keras

from ring_keras.keras_internals.names import (
    ADAPTER_SHUFFLES,
    CLASS_WEIGHT,
    DATA,
    EPOCH_ITERATOR,
    FIRST_EPOCH,
    STEPS_PER_EPOCH,
    VALIDATION_DATA,
    VALIDATION_FREQ,
)

__all__ = [
    "Run",
    "applying_optimizers",
    "calling_callback",
    "calling_callback_list",
    "calling_loss_scale_optimizer",
    "calling_model",
    "calling_optimizer",
    "calling_run",
    "is_calling_fit",
    "is_fitting",
]

# Deep enough for LossScaleOptimizer.apply -> cond -> Optimizer.apply -> hook.
_MAX_FRAMES = 48


def calling_loss_scale_optimizer() -> keras.optimizers.LossScaleOptimizer | None:
    """The one that is being built, or is applying gradients, further up."""
    return _calling(keras.optimizers.LossScaleOptimizer)


def calling_callback_list() -> keras.callbacks.CallbackList | None:
    """The list, with all callbacks of `fit`, that is calling one of them."""
    return _calling(keras.callbacks.CallbackList)


def calling_callback() -> keras.callbacks.Callback | None:
    """The nearest one, if what it does is a method of its own."""
    found = _calling(keras.callbacks.Callback)
    # The list is a callback, too, in newer Keras.
    return None if isinstance(found, keras.callbacks.CallbackList) else found


def calling_model() -> keras.Model | None:
    """The model in one of whose methods, such as `train_step`, we are."""
    return _calling(keras.Model)


def calling_optimizer() -> keras.optimizers.Optimizer | None:
    """The optimizer that is applying gradients."""
    return _calling(keras.optimizers.Optimizer)


def applying_optimizers() -> list[keras.optimizers.Optimizer]:
    """All that have a method further up, one around the other."""
    return _all_calling(keras.optimizers.Optimizer)


@dataclass(frozen=True)
class Run:
    """A call of `fit` or of `evaluate` that is going on.

    Attributes:
        trains: Whether it is `fit`.
        callbacks: The list that this very call goes through.
        data: Its argument `x`.
        keeps_iterator: Whether Keras goes on with one iterator in the next epoch, and
            makes none for each, because the call says how many steps an epoch has.
        epoch_iterator: What Keras made of the data; None where it has not yet.
        validation_data: The argument of `fit`.
        validation_freq: The argument of `fit`.
        class_weight: The argument of `fit`.
        initial_epoch: The argument of `fit`.
    """

    trains: bool
    callbacks: keras.callbacks.CallbackList
    data: Any
    keeps_iterator: bool
    epoch_iterator: Any
    validation_data: Any = None
    validation_freq: Any = 1
    class_weight: Any = None
    initial_epoch: int = 0

    @property
    def adapter(self) -> Any:
        """That in the iterator."""
        return getattr(self.epoch_iterator, "data_adapter", None)

    @property
    def shuffles(self) -> bool:
        """Whether Keras itself shuffles: arrays, and the batches of a `PyDataset`."""
        adapter = self.adapter
        if getattr(adapter, "num_batches", None) is None:
            return False  # It cannot.
        return any(bool(getattr(adapter, name, False)) for name in ADAPTER_SHUFFLES)

    def batch_count(self) -> int | float | None:
        """How many batches the data have, maybe infinitely many; None if unknown."""
        import tensorflow as tf  # Of a `fit` on TensorFlow.

        if isinstance(self.data, tf.data.Dataset) and int(
            self.data.cardinality()
        ) == int(tf.data.INFINITE_CARDINALITY):
            return math.inf
        count = getattr(self.adapter, "num_batches", None)
        return None if count is None else int(count)


def calling_run(model: keras.Model) -> Run | None:
    """The call of `fit` or `evaluate` by which `model` has called us.

    Read off the stack, since a call that has failed leaves no other word of its
    end. None if it is another method of the model that calls, such as
    `train_on_batch`.
    """
    frame = sys._getframe(1)
    for _ in range(_MAX_FRAMES):
        if frame is None:
            return None
        names = frame.f_locals
        if names.get("self") is model:
            for value in names.values():
                if isinstance(value, keras.callbacks.CallbackList):
                    return Run(
                        trains=frame.f_code.co_name == "fit",
                        callbacks=value,
                        data=names.get(DATA),
                        keeps_iterator=names.get(STEPS_PER_EPOCH) is not None,
                        epoch_iterator=names.get(EPOCH_ITERATOR),
                        validation_data=names.get(VALIDATION_DATA),
                        validation_freq=names.get(VALIDATION_FREQ),
                        class_weight=names.get(CLASS_WEIGHT),
                        initial_epoch=names.get(FIRST_EPOCH, 0),
                    )
            return None
        frame = frame.f_back  # type: ignore[assignment]
    return None


def is_calling_fit(model: keras.Model) -> bool:
    """Whether it is `fit` by which `model` has called us; it may have no list yet."""
    frame = sys._getframe(1)
    for _ in range(_MAX_FRAMES):
        if frame is None:
            return False
        if frame.f_locals.get("self") is model:
            return frame.f_code.co_name == "fit"
        frame = frame.f_back  # type: ignore[assignment]
    return False


def is_fitting(model: keras.Model, callbacks: keras.callbacks.CallbackList) -> bool:
    """Whether the call of `fit` with this list goes on, however far up.

    For signal handlers, which may be called while TensorFlow traces.
    """
    frame = sys._getframe(1)
    while frame is not None:
        names = frame.f_locals if frame.f_code.co_name == "fit" else {}
        if names.get("self") is model and any(
            value is callbacks for value in names.values()
        ):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _calling(cls: type[Any]) -> Any:
    """The nearest object of this class with a method further up."""
    return next(iter(_all_calling(cls, most=1)), None)


def _all_calling(cls: type[Any], most: int = _MAX_FRAMES) -> list[Any]:
    """The nearest objects of this class with methods further up."""
    found: list[Any] = []
    frame = sys._getframe(2)
    for _ in range(_MAX_FRAMES):
        if frame is None or len(found) == most:
            break
        caller = frame.f_locals.get("self")
        if isinstance(caller, cls):
            found.append(caller)
        frame = frame.f_back  # type: ignore[assignment]
    return found
