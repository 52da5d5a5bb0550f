"""The hook of a `LossScaleOptimizer`."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ring_keras import keras_internals as internals
from ring_keras.ops.allreduce import allreduce
from ring_keras.ops.arguments import Factor
from ring_keras.ops.step import in_order
from ring_keras.optimizers.gradient_values import Gradient
from ring_keras.optimizers.optimizer_hook import OptimizerHook, sources_of
from ring_keras.optimizers.step_scope import current_step
from ring_keras.optimizers.wrapper_hook import WrapperHook
from ring_keras.values.reduce_op import ReduceOp

__all__ = ["LossScaleHook"]


class LossScaleHook(WrapperHook):
    """Reduces before the optimizer decides whether gradients are finite.

    It updates inside of a conditional: with an inf on one rank only, that rank
    would skip a collective that the others enter.

    Where the optimizer inside accumulates, that one reduces, so that there is one
    reduction per update still. The ranks then agree in each step whether the
    gradients of all are finite. So they do in an `apply` that was on its way when
    this hook was installed.
    """

    _equal_on_all_ranks = False
    """Whether the gradients that `check_finite` is about to see are."""

    def install(self) -> None:
        """Puts the hook into the optimizer, and one into that inside."""
        super().install()
        self._replace(internals.CHECK_FINITE, self._check_finite)

    def _hook_inner(self) -> None:
        for inner in internals.inner_optimizers(self._optimizer):
            if OptimizerHook.of(inner) is None:
                self._install_hook(inner, self.options, adopted=self.adopted)
            hook = OptimizerHook.of(inner)
            if hook is not None:
                self._take_owed(hook)

    def _apply(
        self,
        grads: Sequence[Gradient],
        trainable_variables: Sequence[Any] | None = None,
    ) -> None:
        with in_order():
            if self._inner_accumulates():
                step = current_step()
                if step is not None and tf.executing_eagerly():
                    step.accumulates = True  # Also where this one skips the update.
                # What is made of no examples must not look like an overflow.
                known = trainable_variables or internals.trainable_variables(
                    self._optimizer
                )
                grads = self._reducer.of_examples(grads, sources_of(known, grads))
                apply = type(self._optimizer).apply
                apply(self._optimizer, grads, trainable_variables)
            else:
                super()._apply(grads, trainable_variables)

    def _hand_on(self, grads: list[Gradient], variables: list[Any] | None) -> None:
        step = current_step()
        keeps_own = self.options.keeps_local or (step is not None and step.kept_own)
        self._equal_on_all_ranks = not keeps_own
        try:
            super()._hand_on(grads, variables)
        finally:
            self._equal_on_all_ranks = False

    def _loss_scale(self) -> Factor:
        if not self._optimizer.built:  # Keras builds it after this.
            return float(self._optimizer.initial_scale)
        return tf.convert_to_tensor(self._optimizer.dynamic_scale)

    def _inner_accumulates(self) -> bool:
        (inner,) = internals.inner_optimizers(self._optimizer)
        return not internals.is_wrapper(inner) and bool(
            inner.gradient_accumulation_steps
        )

    def _check_finite(self, grads: Sequence[Gradient]) -> tf.Tensor:
        """Of all ranks' gradients, where those may differ by now."""
        finite = type(self._optimizer).check_finite(self._optimizer, grads)
        if self._equal_on_all_ranks or not self._reducer.active:
            return finite
        with tf.device("CPU:0"):  # The optimizer decides on the host.
            return allreduce(
                finite,
                ReduceOp.MIN,
                name="gradients/finite",
                process_set=self.process_set,
            )
