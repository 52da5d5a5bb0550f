"""Gradients averaged over the ranks, for training loops of one's own."""

import contextlib
import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf

from ring_keras import keras_internals as internals
from ring_keras.errors import translated
from ring_keras.job.process_set import ProcessSet, generation
from ring_keras.ops.step import in_order
from ring_keras.optimizers.gradient_reducer import GradientReducer
from ring_keras.optimizers.gradient_values import Gradient
from ring_keras.optimizers.pass_accumulator import PassAccumulator
from ring_keras.optimizers.reduction_options import ReductionOptions
from ring_keras.optimizers.step_scope import StepScope, current_step, enter_step
from ring_keras.values.compression import Compression, Compressor, PowerSGD
from ring_keras.values.reduce_op import ReduceOp

__all__ = ["DistributedGradientTape", "forget_sums"]


# Set on a TensorFlow variable: what is shared by the tapes whose first source it is.
_SHARED = "_ring_keras_tapes"


class _Shared:
    """What tapes of one step after the other have in common.

    The ranks agree on a plan only once, and a pass is a tape.
    """

    def __init__(self, options: ReductionOptions) -> None:
        self.generation = generation()
        self.reducer = GradientReducer(options)
        self.accumulator = PassAccumulator(options.backward_passes_per_step)

    @classmethod
    def of(cls, options: ReductionOptions, sources: Sequence[Any]) -> "_Shared":
        """By options; it lives as long as the first variable, and so the model."""
        for source in sources:
            source = internals.tensorflow_variable(source)
            if isinstance(source, tf.Variable):
                shared: dict[ReductionOptions, _Shared]
                shared = vars(source).setdefault(_SHARED, {})
                # What was added up in an earlier membership may differ by rank.
                if options not in shared or shared[options].generation != generation():
                    shared[options] = cls(options)
                return shared[options]
        return _shared_without_variables(options)


# A reducer asks again about its plans in another membership. Ranks forget the same,
# as they use the same ones in the same order.
@functools.lru_cache(maxsize=64)
def _shared_without_variables(options: ReductionOptions) -> _Shared:
    return _Shared(options)


def forget_sums(model: keras.Model) -> None:
    """Has the model's tapes add up gradients anew; only before steps are traced."""
    for variable in model.variables:
        vars(internals.tensorflow_variable(variable)).pop(_SHARED, None)


class DistributedGradientTape:
    """A `tf.GradientTape` whose `gradient` is the average over all ranks.

    Use it in place of the tape that it wraps, also as a context manager:

    ```python
    with ring.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = compute_loss(batch)
    gradients = tape.gradient(loss, model.trainable_variables)
    ```

    Inside a Keras `train_step`, ranks count by their number of examples;
    elsewhere all count the same.

    Examples:
        >>> weight = tf.Variable(3.0)
        >>> with ring.DistributedGradientTape(tf.GradientTape()) as tape:
        ...     loss = weight * float(ring.rank())
        >>> tape.gradient(loss, [weight])[0].numpy()  # The mean of 0 and 1.
        np.float32(0.5)

    Args:
        tape: The tape that records. This object has its other methods, too.
        op: See `DistributedOptimizer`.
        compression: See `DistributedOptimizer`.
        process_set: Ranks taking part. Defaults to all.
        bucket_size_bytes: See `DistributedOptimizer`.
        gradient_predivide_factor: See `DistributedOptimizer`.
        backward_passes_per_step: The number of calls of `gradient` with the same
            sources between two reductions. Only the last call communicates, and
            returns the reduction of the sum of all. The others return zeros, which
            must not be applied. Gradients are dense then.
        average_aggregated_gradients: Whether the mean is reduced instead of the
            sum.
        sparse_as_dense: Whether `tf.IndexedSlices` are made dense before they are
            reduced, and returned dense. By default they are gathered, because an
            index that occurs twice may mean different things to their user.
        num_groups: See `DistributedOptimizer`.
        groups: See `DistributedOptimizer`.
        local_layers: See `DistributedOptimizer`.
        scale_local_gradients: See `DistributedOptimizer`.
    """

    def __init__(
        self,
        tape: tf.GradientTape,
        op: ReduceOp | str = ReduceOp.AVERAGE,
        *,
        compression: Compression | Compressor | PowerSGD | str = Compression.none,
        process_set: ProcessSet | None = None,
        bucket_size_bytes: int | None = None,
        gradient_predivide_factor: float = 1.0,
        backward_passes_per_step: int = 1,
        average_aggregated_gradients: bool = False,
        sparse_as_dense: bool | None = None,
        num_groups: int = 0,
        groups: Sequence[Sequence[Any]] | None = None,
        local_layers: keras.layers.Layer | Iterable[keras.layers.Layer] | None = None,
        scale_local_gradients: bool = True,
    ) -> None:
        self._tape = tape
        self._options = ReductionOptions.read(
            op=op,
            process_set=process_set,
            bucket_size_bytes=bucket_size_bytes,
            compression=compression,
            gradient_predivide_factor=gradient_predivide_factor,
            backward_passes_per_step=backward_passes_per_step,
            average_aggregated_gradients=average_aggregated_gradients,
            sparse_as_dense=sparse_as_dense,
            num_groups=num_groups,
            groups=groups,
            local_layers=local_layers,
            scale_local_gradients=scale_local_gradients,
        )

    def __enter__(self) -> "DistributedGradientTape":
        self._tape.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._tape.__exit__(*exception)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tape, name)

    def register_local_source(self, source: Any) -> None:
        """Keeps the gradient of a variable on its rank, as of `local_layers`.

        Args:
            source: One of the sources that `gradient` will get.
        """
        key = internals.variable_key(source)
        self._options = dataclasses.replace(
            self._options, local_variables=self._options.local_variables | {key}
        )

    @translated()
    def gradient(self, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        """Computes gradients and reduces them over the ranks.

        Args:
            target: As for `tf.GradientTape.gradient`.
            sources: Tensors, variables, or a structure of them.
            *args: Passed to `tf.GradientTape.gradient`.
            **kwargs: Passed to `tf.GradientTape.gradient`.

        Returns:
            A structure like `sources`, the same on every rank. None where
            `target` does not depend on the source, as without this class.

        Raises:
            RankMismatchError: If the ranks' gradients differ in shape, dtype or
                number.
        """
        step = current_step()
        with self._counted(step):
            gradients = self._tape.gradient(target, sources, *args, **kwargs)
        flat_sources = tf.nest.flatten(sources)
        flat = self._reduced(tf.nest.flatten(gradients), flat_sources)
        if step is not None:
            step.kept_own.update(
                internals.variable_key(source)
                for source in flat_sources
                if self._options.keeps_local and self._options.is_local(source)
            )
            step.tape_gradients.update((id(g), g) for g in flat)
        return tf.nest.pack_sequence_as(gradients, flat)

    def _counted(
        self, step: StepScope | None
    ) -> contextlib.AbstractContextManager[None]:
        """Has what communicates in backward count ranks as the reduction will."""
        if step is None or self._options.op is ReduceOp.AVERAGE:
            return contextlib.nullcontext()
        return enter_step(dataclasses.replace(step, weight=None))

    def _reduced(self, gradients: list[Gradient], sources: list[Any]) -> list[Gradient]:
        options = self._options
        shared = _Shared.of(options, sources)
        reducer = shared.reducer
        weight = reducer.step_weight()
        passes = options.backward_passes_per_step
        if passes == 1:
            with in_order():
                return reducer.reduce(gradients, sources, weight)
        step = current_step()
        if step is not None and reducer.active and tf.executing_eagerly():
            step.accumulates = True
        gradients = reducer.of_pass(gradients, sources)
        factor = options.passes_factor / passes
        return shared.accumulator.add(
            gradients,
            sources,
            lambda sums: reducer.reduce(sums, sources, factor=factor, are_sums=True),
        )
