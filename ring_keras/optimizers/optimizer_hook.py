"""Where the reduction enters a Keras optimizer.

Methods are replaced on the one instance. Keras saves, copies and pickles an
optimizer by its configuration and variables, so the hook goes nowhere else:
files stay free of this package, and copies are unhooked.
"""

import threading
from collections.abc import Sequence
from typing import Any, Optional

import keras
import tensorflow as tf

from ring_keras import keras_internals as internals
from ring_keras.errors import RingKerasError
from ring_keras.job.process_set import ProcessSet
from ring_keras.ops.allreduce import allreduce
from ring_keras.ops.reduce_op import ReduceOp
from ring_keras.optimizers.gradient_reducer import Gradient, GradientReducer
from ring_keras.optimizers.reduction_options import ReductionOptions
from ring_keras.optimizers.step_scope import StepWeight, current_step

__all__ = ["OptimizerHook"]


class _Outer(threading.local):
    """Whether a hooked optimizer around this one has reduced already."""

    active = False


_outer = _Outer()


class OptimizerHook:
    """Reduces the gradients of one optimizer.

    A plain optimizer reduces in `_clip_gradients`: after accumulation, before
    clipping, once per update. One that wraps others reduces in `apply`, because
    `LossScaleOptimizer` decides there, inside a conditional, whether gradients
    are finite: with an inf on one rank only, that rank would skip a collective
    that the others enter.

    Where the optimizer inside a `LossScaleOptimizer` accumulates, that one
    reduces, so that there is one reduction per update still. The ranks then
    agree in each step whether the gradients of all are finite.

    Args:
        optimizer: The optimizer.
        options: What the user has chosen.
        adopted: Whether the user did not ask for it; then it leaves gradients
            alone that come from a `DistributedGradientTape`. Those changed in
            between, by clipping for instance, are averaged once more, which
            leaves them as they are.
    """

    def __init__(
        self,
        optimizer: keras.optimizers.Optimizer,
        options: ReductionOptions,
        *,
        adopted: bool = False,
    ) -> None:
        self.options = options
        self._optimizer = optimizer
        self._adopted = adopted
        self._reducer = GradientReducer(
            options, sums_duplicates=_sums_duplicates(optimizer)
        )
        self._sources: list[Any] = []
        self._within_loss_scaling = False

    @property
    def op(self) -> ReduceOp:
        """How gradients are combined."""
        return self.options.op

    @property
    def process_set(self) -> ProcessSet:
        """The ranks that train together."""
        return self.options.process_set

    @staticmethod
    def of(optimizer: keras.optimizers.Optimizer) -> Optional["OptimizerHook"]:
        """The hook installed in this very optimizer."""
        for name in (internals.APPLY, internals.CLIP_GRADIENTS):
            method = internals.replacement(optimizer, name)
            owner = getattr(method, "__self__", None)
            if isinstance(owner, OptimizerHook):
                return owner
        return None

    def install(self) -> None:
        """Puts the hook into the optimizer."""
        if internals.is_wrapper(self._optimizer):
            internals.replace(self._optimizer, internals.APPLY, self._apply)
            if isinstance(self._optimizer, keras.optimizers.LossScaleOptimizer):
                internals.replace(
                    self._optimizer, internals.CHECK_FINITE, self._check_finite
                )
            return
        internals.replace(
            self._optimizer,
            internals.BACKEND_APPLY_GRADIENTS,
            self._backend_apply_gradients,
        )
        internals.replace(
            self._optimizer, internals.CLIP_GRADIENTS, self._clip_gradients
        )

    def moved_to(self, wrapper: keras.optimizers.Optimizer) -> "OptimizerHook":
        """The same hook for the optimizer that wraps this one's."""
        return OptimizerHook(wrapper, self.options, adopted=self._adopted)

    def _apply(
        self,
        grads: Sequence[Gradient],
        trainable_variables: Sequence[Any] | None = None,
    ) -> None:
        """`apply` of an optimizer that wraps others."""
        grads = list(grads)
        variables = None if trainable_variables is None else list(trainable_variables)
        apply = type(self._optimizer).apply
        if _outer.active:
            apply(self._optimizer, grads, variables)
            return
        if self._inner_accumulates():
            self._hook_inner()
            apply(self._optimizer, grads, variables)
            return
        known = variables or internals.trainable_variables(self._optimizer)
        reduced = self._reduced(
            grads,
            _sources(known, grads),
            self._reducer.step_weight(),
            self.options.passes_factor,
        )
        _outer.active = True
        try:
            apply(self._optimizer, reduced, variables)
        finally:
            _outer.active = False

    def _inner_accumulates(self) -> bool:
        if not isinstance(self._optimizer, keras.optimizers.LossScaleOptimizer):
            return False
        inner = self._optimizer.inner_optimizer
        return not internals.is_wrapper(inner) and bool(
            inner.gradient_accumulation_steps
        )

    def _hook_inner(self) -> None:
        (inner,) = internals.inner_optimizers(self._optimizer)
        hook = OptimizerHook.of(inner)
        if hook is None:
            hook = self.moved_to(inner)
            hook.install()
        hook._within_loss_scaling = True

    def _check_finite(self, grads: Sequence[Gradient]) -> tf.Tensor:
        """Of all ranks' gradients, where those may differ by now."""
        finite = type(self._optimizer).check_finite(self._optimizer, grads)
        if not self._reducer.active:
            return finite
        if self.options.keeps_local or self._inner_accumulates():
            step = current_step()
            if step is not None:
                step.communicated = True
            finite = allreduce(
                finite,
                ReduceOp.MIN,
                name="gradients/finite",
                process_set=self.process_set,
            )
        return finite

    def _backend_apply_gradients(
        self, grads: Sequence[Gradient], trainable_variables: Sequence[Any]
    ) -> None:
        """Runs outside of the conditional that accumulation makes."""
        self._sources = _sources(trainable_variables, grads)
        step = current_step()
        if step is not None and self._reducer.active:
            # Holds for an eager step too that only accumulates.
            step.communicated = True
        weight = self._reducer.step_weight()
        if (
            self._optimizer.gradient_accumulation_steps
            and weight is not None
            and not _outer.active
        ):
            # Each of the accumulated batches has its own weight.
            grads = self._reducer.weigh(grads, self._sources, weight.share())
        type(self._optimizer)._backend_apply_gradients(
            self._optimizer, grads, trainable_variables
        )

    def _clip_gradients(self, grads: Sequence[Gradient]) -> Any:
        if not _outer.active:
            self._refuse_inside_loss_scaling()
            weight = self._reducer.step_weight()
            if self._optimizer.gradient_accumulation_steps:
                weight = None
            sources = _sources(self._sources, grads)
            grads = self._reduced(grads, sources, weight, self.options.passes_factor)
        return type(self._optimizer)._clip_gradients(self._optimizer, grads)

    def _reduced(
        self,
        grads: Sequence[Gradient],
        sources: Sequence[Any],
        weight: StepWeight | None,
        factor: float,
    ) -> list[Gradient]:
        step = current_step()
        if not self._adopted or step is None or not step.tape_gradients:
            return self._reducer.reduce(grads, sources, weight, factor)
        own = [None if id(g) in step.tape_gradients else g for g in grads]
        if all(g is None for g in own):
            return list(grads)
        reduced = self._reducer.reduce(own, sources, weight, factor)
        return [
            g if mine is None else r
            for g, mine, r in zip(grads, own, reduced, strict=True)
        ]

    def _refuse_inside_loss_scaling(self) -> None:
        if self._within_loss_scaling or not self._reducer.active:
            return
        if internals.called_by_loss_scale_optimizer():
            raise RingKerasError(
                "A LossScaleOptimizer was put around the optimizer after "
                "ring_keras.DistributedOptimizer had it, as compile() does under "
                "mixed_float16. Gradients must be reduced before it looks for inf "
                "and nan. Add ring_keras.callbacks.BroadcastGlobalVariables() to "
                "the callbacks of fit(), or compile with ring_keras."
                "DistributedOptimizer(keras.optimizers.LossScaleOptimizer(...))."
            )


def _sums_duplicates(optimizer: keras.optimizers.Optimizer) -> bool:
    """Whether slices of one index count as their sum; see `GradientReducer`.

    Most Keras optimizers square, and all of them clip, the slices of a sparse
    gradient one by one.
    """
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return _sums_duplicates(optimizer.inner_optimizer)
    clips = optimizer.clipnorm or optimizer.global_clipnorm or optimizer.clipvalue
    return type(optimizer) is keras.optimizers.SGD and not clips


def _sources(variables: Sequence[Any], grads: Sequence[Gradient]) -> list[Any]:
    if len(variables) != len(grads):
        return [f"gradient {index}" for index in range(len(grads))]
    return list(variables)
