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

from ring_keras import _keras_internals as internals
from ring_keras.communicator import ProcessSet
from ring_keras.compression import Compression
from ring_keras.errors import RingKerasError
from ring_keras.optimizers.gradient_reducer import Gradient, GradientReducer
from ring_keras.optimizers.step_scope import StepWeight, current_step
from ring_keras.reduce_op import ReduceOp

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

    Args:
        optimizer: The optimizer.
        op: `AVERAGE` or `SUM`.
        process_set: Ranks that train together.
        bucket_size_bytes: See `GradientReducer`.
        compression: See `GradientReducer`.
        adopted: Whether the user did not ask for it; then it leaves gradients
            alone that come from a `DistributedGradientTape`. Those changed in
            between, by clipping for instance, are averaged once more, which
            leaves them as they are.
    """

    def __init__(
        self,
        optimizer: keras.optimizers.Optimizer,
        op: ReduceOp | str,
        process_set: ProcessSet,
        bucket_size_bytes: int | None,
        compression: Compression | str = Compression.none,
        *,
        adopted: bool = False,
    ) -> None:
        self.op = op
        self.process_set = process_set
        self._optimizer = optimizer
        self._bucket_size_bytes = bucket_size_bytes
        self._compression = compression
        self._adopted = adopted
        self._reducer = GradientReducer(op, process_set, bucket_size_bytes, compression)
        self._names: list[str] = []

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
        return OptimizerHook(
            wrapper,
            self.op,
            self.process_set,
            self._bucket_size_bytes,
            self._compression,
            adopted=self._adopted,
        )

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
        names = _names(variables or (), grads)
        reduced = self._reduced(grads, names, self._reducer.step_weight())
        _outer.active = True
        try:
            apply(self._optimizer, reduced, variables)
        finally:
            _outer.active = False

    def _backend_apply_gradients(
        self, grads: Sequence[Gradient], trainable_variables: Sequence[Any]
    ) -> None:
        """Runs outside of the conditional that accumulation makes."""
        self._names = _names(trainable_variables, grads)
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
            share = weight.share()
            grads = [g if g is None else _scaled(g, share) for g in grads]
        type(self._optimizer)._backend_apply_gradients(
            self._optimizer, grads, trainable_variables
        )

    def _clip_gradients(self, grads: Sequence[Gradient]) -> Any:
        if not _outer.active:
            self._refuse_inside_loss_scaling()
            weight = self._reducer.step_weight()
            if self._optimizer.gradient_accumulation_steps:
                weight = None
            names = (
                self._names
                if len(self._names) == len(grads)
                else [f"gradient {index}" for index in range(len(grads))]
            )
            grads = self._reduced(grads, names, weight)
        return type(self._optimizer)._clip_gradients(self._optimizer, grads)

    def _reduced(
        self,
        grads: Sequence[Gradient],
        names: Sequence[str],
        weight: StepWeight | None,
    ) -> list[Gradient]:
        step = current_step()
        if not self._adopted or step is None or not step.tape_gradients:
            return self._reducer.reduce(grads, names, weight)
        own = [None if id(g) in step.tape_gradients else g for g in grads]
        if all(g is None for g in own):
            return list(grads)
        reduced = self._reducer.reduce(own, names, weight)
        return [
            g if mine is None else r
            for g, mine, r in zip(grads, own, reduced, strict=True)
        ]

    def _refuse_inside_loss_scaling(self) -> None:
        if self._reducer.active and internals.called_by_loss_scale_optimizer():
            raise RingKerasError(
                "A LossScaleOptimizer was put around the optimizer after "
                "ring_keras.DistributedOptimizer had it, as compile() does under "
                "mixed_float16. Gradients must be reduced before it looks for inf "
                "and nan. Add ring_keras.callbacks.BroadcastGlobalVariables() to "
                "the callbacks of fit(), or compile with ring_keras."
                "DistributedOptimizer(keras.optimizers.LossScaleOptimizer(...))."
            )


def _scaled(gradient: tf.Tensor | tf.IndexedSlices, share: tf.Tensor) -> Any:
    factor = tf.cast(share, gradient.dtype)
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(
            gradient.values * factor, gradient.indices, gradient.dense_shape
        )
    return gradient * factor


def _names(variables: Sequence[Any], grads: Sequence[Gradient]) -> list[str]:
    if len(variables) != len(grads):
        return [f"gradient {index}" for index in range(len(grads))]
    return [str(getattr(v, "path", None) or v.name) for v in variables]
