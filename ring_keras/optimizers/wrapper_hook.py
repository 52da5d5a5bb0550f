"""The hook of an optimizer that hands its gradients to others."""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import keras

from ring_keras import keras_internals as internals
from ring_keras.ops.step import in_order
from ring_keras.optimizers.gradient_values import Gradient
from ring_keras.optimizers.optimizer_hook import OptimizerHook, sources_of

__all__ = ["WrapperHook", "all_suspended"]


class WrapperHook(OptimizerHook):
    """Reduces in `apply`, once for all optimizers inside."""

    def install(self) -> None:
        """Puts the hook into the optimizer."""
        super().install()
        self._replace(internals.APPLY, self._apply)
        self._hook_inner()

    def _hook_inner(self) -> None:
        """Has the ranks divide what each optimizer inside keeps, if they are to.

        Their updates are those of Keras, as without a divided state.
        """
        if not self.options.shard_state:
            return
        options = dataclasses.replace(self.options, fused_update=False)
        for inner in internals.inner_optimizers(self._optimizer):
            if OptimizerHook.of(inner) is None:
                self._install_hook(inner, options, adopted=self.adopted)

    def _apply(
        self,
        grads: Sequence[Gradient],
        trainable_variables: Sequence[Any] | None = None,
    ) -> None:
        grads = list(grads)
        variables = None if trainable_variables is None else list(trainable_variables)
        if self._suspended:
            self._hand_on(grads, variables)
            return
        known = variables or internals.trainable_variables(self._optimizer)
        with in_order():
            grads = self._reduced(
                grads, sources_of(known, grads), self._reducer.step_weight()
            )
        with all_suspended(self._optimizer):
            self._hand_on(grads, variables)

    def _hand_on(self, grads: list[Gradient], variables: list[Any] | None) -> None:
        type(self._optimizer).apply(self._optimizer, grads, variables)


@contextlib.contextmanager
def all_suspended(wrapper: keras.optimizers.Optimizer) -> Iterator[None]:
    """Lets gradients pass the hooks of all optimizers inside, at any depth."""
    with contextlib.ExitStack() as stack:
        inside = internals.inner_optimizers(wrapper)
        while inside:
            optimizer = inside.pop()
            inside += internals.inner_optimizers(optimizer)
            hook = OptimizerHook.of(optimizer)
            if hook is not None:
                stack.enter_context(hook.suspended())
        yield
