"""The hook of an optimizer that updates variables itself."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from ring_keras import keras_internals as internals
from ring_keras.job.job import current_job
from ring_keras.job.process_set import has_peers
from ring_keras.keras_internals.graphs import is_for_xla
from ring_keras.ops.step import in_order
from ring_keras.optimizers.fused_update import FusedUpdate
from ring_keras.optimizers.gradient_values import Gradient, rounded
from ring_keras.optimizers.optimizer_hook import OptimizerHook, sources_of
from ring_keras.optimizers.scattered_bucket import OwnPart
from ring_keras.optimizers.sharded_state import ShardedState
from ring_keras.optimizers.state_division import StateDivision
from ring_keras.optimizers.step_scope import current_step
from ring_keras.values.compression import Compression
from ring_keras.values.reduce_op import ReduceOp

__all__ = ["UpdateHook"]


class UpdateHook(OptimizerHook):
    """Reduces in `_clip_gradients`.

    That is after accumulation, before clipping, and once per update. Gradients
    that Keras assigns to their variables, as in float8 training, do not come so
    far, so they are seen to before.
    """

    _sources: Sequence[Any] = ()
    """Of the gradients that are on their way to `_clip_gradients`."""

    _sharded: ShardedState | None = None

    @property
    def sharded(self) -> ShardedState | None:
        """Where the ranks divide the state."""
        return self._sharded

    def install(self) -> None:
        """Puts the hook into the optimizer."""
        super().install()
        self._replace(internals.APPLY, self._apply)
        self._replace(internals.OVERWRITE_DIRECTLY, self._overwrite_directly)
        self._replace(internals.BACKEND_APPLY_GRADIENTS, self._backend_apply_gradients)
        self._replace(internals.CLIP_GRADIENTS, self._clip_gradients)
        fused = FusedUpdate(self._optimizer, wanted=self.options.fused_update)
        fused.install()
        if self.options.shard_state:
            division = StateDivision(
                self._optimizer,
                self.process_set,
                self.options.is_local,
                bucket_size_bytes=self.options.bucket_size_bytes,
                scatters=self._may_scatter(),
            )
            self._sharded = ShardedState(
                self._optimizer, self.process_set, fused, division
            )
            self._sharded.install()

    def _build_here(self, variables: Sequence[Any]) -> None:
        if self._sharded is None:
            super()._build_here(variables)
        else:
            # What a variable begins with must not wait for gradients: TensorFlow has
            # to take it out of the function that is being traced.
            with tf.control_dependencies(None):
                self._sharded.division.build(variables)
        internals.require_accumulators(self._optimizer)

    def _apply(
        self,
        grads: Sequence[Gradient],
        trainable_variables: Sequence[Any] | None = None,
    ) -> Any:
        apply = type(self._optimizer).apply
        grads = list(grads)
        if self._suspended:
            # Its conditional, behind those of a `MultiOptimizer`'s other optimizers.
            with in_order(), self._after(grads):
                return apply(self._optimizer, grads, trainable_variables)
        variables = None if trainable_variables is None else list(trainable_variables)
        known = variables or internals.trainable_variables(self._optimizer)
        with in_order(), self._must_be_passed(grads, known), self._after(grads):
            return apply(self._optimizer, grads, variables)

    @contextlib.contextmanager
    def _after(self, grads: Sequence[Gradient]) -> Iterator[None]:
        """Where the ranks divide the state, nothing happens without gradients.

        Where data of unknown length end, TensorFlow runs all that needs no batch. That
        is not the same on ranks that update different variables.
        """
        tensors = filter(tf.is_tensor, grads if self._sharded else ())
        with tf.control_dependencies(list(tensors)):
            yield

    def _overwrite_directly(
        self, grads: Sequence[Gradient], variables: Sequence[Any]
    ) -> Any:
        if not self._suspended:
            grads = self._reducer.largest(grads, variables)
        return type(self._optimizer)._overwrite_variables_directly_with_gradients(
            self._optimizer, grads, variables
        )

    def _backend_apply_gradients(
        self, grads: Sequence[Gradient], trainable_variables: Sequence[Any]
    ) -> None:
        """Runs outside of the conditional that accumulation makes."""
        if self._accumulates():
            self._note_passed()
        if self._accumulates() and not self._suspended:
            step = current_step()
            if step is not None and self._reducer.active and tf.executing_eagerly():
                step.accumulates = True
            grads = self._reducer.of_pass(grads, trainable_variables)
        self._sources = sources_of(trainable_variables, grads)
        try:
            type(self._optimizer)._backend_apply_gradients(
                self._optimizer, grads, trainable_variables
            )
        finally:
            self._sources = ()

    def _clip_gradients(self, grads: Sequence[Gradient]) -> Any:
        if not self._suspended:
            accumulates = self._accumulates()
            weight = None if accumulates else self._reducer.step_weight()
            sources = sources_of(self._sources, grads)
            division = self._division_of_gradients()
            grads = self._reduced(
                grads, sources, weight, are_sums=accumulates, division=division
            )
            if division is not None:
                return self._clipped_parts(grads)
        clipped = type(self._optimizer)._clip_gradients(self._optimizer, grads)
        if self._optimizer.global_clipnorm and has_peers(self.process_set):
            # Ranks that divide the state go on with pieces of them.
            clipped = list(map(rounded, clipped))
        return clipped

    def _clipped_parts(self, grads: Sequence[Gradient | OwnPart]) -> list[Any]:
        """By value, if at all: each element by itself."""
        values = [g.values if isinstance(g, OwnPart) else g for g in grads]
        clipped = type(self._optimizer)._clip_gradients(self._optimizer, values)
        return [
            OwnPart(value) if isinstance(gradient, OwnPart) else value
            for gradient, value in zip(grads, clipped, strict=True)
        ]

    def _may_scatter(self) -> bool:
        """Whether nobody but who updates a variable needs its reduced gradient."""
        optimizer, options = self._optimizer, self.options
        return (
            not (optimizer.clipnorm or optimizer.global_clipnorm)
            and options.op in (ReduceOp.AVERAGE, ReduceOp.SUM)
            and options.compression is Compression.none
            and options.compressor is None
            and options.low_rank is None
        )

    def _division_of_gradients(self) -> StateDivision | None:
        """Who needs what of the reduced gradients; None: all ranks need all."""
        if (
            self._sharded is None
            or not self._sharded.division.is_for_hosts
            or not self._may_scatter()
            or current_job().on_gpu
            or is_for_xla(tf.compat.v1.get_default_graph())
        ):
            return None
        return self._sharded.division

    def _accumulates(self) -> bool:
        return bool(self._optimizer.gradient_accumulation_steps)
