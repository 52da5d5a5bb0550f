"""Finds optimizers of a model that apply gradients of their own rank."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras

from ring_keras import keras_internals as internals
from ring_keras.errors import RingKerasError
from ring_keras.optimizers.agreed_plans import source_name
from ring_keras.optimizers.optimizer_hook import OptimizerHook
from ring_keras.optimizers.step_scope import StepScope

__all__ = ["unreduced_updates_refused"]


@contextlib.contextmanager
def unreduced_updates_refused(model: keras.Model, step: StepScope) -> Iterator[None]:
    """Raises where an optimizer that reduces nothing gets what nobody has reduced.

    Another optimizer, or a tape, may have reduced the gradients of other variables
    in the same step, so the step as a whole is no evidence.

    Args:
        model: Its optimizers are watched inside.
        step: The step that it runs.

    Raises:
        RingKerasError: From `apply` of such an optimizer. Names a variable.
    """
    watched = _without_hook(model)
    for optimizer in watched:
        internals.replace(optimizer, internals.APPLY, _Apply(model, optimizer, step))
    try:
        yield
    finally:
        for optimizer in watched:
            internals.restore(optimizer, internals.APPLY)


def _without_hook(model: keras.Model) -> list[keras.optimizers.Optimizer]:
    """Those that neither reduce themselves nor are inside of one that does."""
    optimizers = internals.optimizers_of(model)
    inside: list[keras.optimizers.Optimizer] = []
    for optimizer in optimizers:
        inside += internals.inner_optimizers(optimizer)
    for optimizer in inside:
        inside += internals.inner_optimizers(optimizer)
    return [
        optimizer
        for optimizer in optimizers
        if OptimizerHook.of(optimizer) is None
        and all(optimizer is not other for other in inside)
        and internals.replacement(optimizer, internals.APPLY) is None
    ]


class _Apply:
    """Stands before an optimizer's `apply`."""

    def __init__(
        self,
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer,
        step: StepScope,
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._step = step

    def __call__(
        self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None
    ) -> None:
        grads = list(grads)
        variables = list(
            trainable_variables or internals.trainable_variables(self._optimizer)
        )
        for gradient, variable in zip(grads, variables, strict=False):
            if gradient is not None and not self._is_reduced(variable):
                raise RingKerasError(
                    "[RK605] "
                    f"Optimizer '{self._optimizer.name}' of model "
                    f"'{self._model.name}' was given a gradient of "
                    f"'{source_name(variable)}' that has been reduced with no other "
                    "rank: every rank would train that variable alone. Give the "
                    "optimizer to ring_keras.DistributedOptimizer, or add ring_keras."
                    "callbacks.BroadcastGlobalVariables() to the callbacks of fit()."
                )
        type(self._optimizer).apply(self._optimizer, grads, trainable_variables)

    def _is_reduced(self, variable: Any) -> bool:
        # A step of a tape's that only adds up returns zeros.
        return (
            self._step.accumulates
            or internals.variable_key(variable) in self._step.reduced
        )
