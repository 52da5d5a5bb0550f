"""Reduces the gradients of a step: starts first, waits last."""

import itertools
from collections.abc import Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from ring_keras import keras_internals as internals
from ring_keras.job import bucket_size
from ring_keras.job.process_set import ProcessSet, job_number
from ring_keras.ops.adasum import adasum
from ring_keras.ops.allreduce import allreduce
from ring_keras.ops.arguments import Factor, to_factor
from ring_keras.ops.grouped_allreduce import (
    PendingAllreduce,
    allreduce_start,
    allreduce_wait,
)
from ring_keras.ops.reduce_op import ReduceOp
from ring_keras.ops.scaling import scaled as scaled_values
from ring_keras.optimizers.buckets import BucketPlan, GradientSpec, plan_buckets
from ring_keras.optimizers.common_start import start_alike
from ring_keras.optimizers.plan_agreement import agree_on_plan
from ring_keras.optimizers.reduction_options import ReductionOptions
from ring_keras.optimizers.sparse_choice import SparseGradient, choose_dense
from ring_keras.optimizers.step_scope import StepWeight, current_step

__all__ = ["Gradient", "GradientReducer", "scaled", "source_name"]

Gradient: TypeAlias = tf.Tensor | tf.IndexedSlices | None


class GradientReducer:
    """Reduces lists of gradients over the ranks of a process set.

    Args:
        options: What to do with them. On a rank outside of its process set
            `reduce` leaves gradients on their rank.
        sums_duplicates: Whether whoever gets the gradients does with slices of
            the same index what it would do with their sum. Only then a sparse
            gradient is made dense because that costs less.
    """

    def __init__(
        self, options: ReductionOptions, *, sums_duplicates: bool = False
    ) -> None:
        self._options = options
        self._sums_duplicates = sums_duplicates
        # By the job in which the ranks agreed on it, and what they agreed on.
        self._agreed: dict[tuple[int, bytes], BucketPlan] = {}

    @property
    def process_set(self) -> ProcessSet:
        """The ranks that take part."""
        return self._options.process_set

    @property
    def active(self) -> bool:
        """Whether there is another rank to reduce with."""
        return self.process_set.size() > 1 and self.process_set.included()

    def step_weight(self) -> StepWeight | None:
        """How much this rank counts in the current step; None for all alike."""
        step = current_step()
        if step is None or self._options.op is not ReduceOp.AVERAGE:
            return None
        return step.weight if step.process_set is self.process_set else None

    def weigh(
        self, gradients: Sequence[Gradient], sources: Sequence[Any], share: tf.Tensor
    ) -> list[Gradient]:
        """Scales gradients that are accumulated before ranks reduce them."""
        as_they_are = [
            self._options.is_local(source) and not self._options.scale_local_gradients
            for source in sources
        ]
        return [
            gradient if stays else scaled(gradient, share)
            for gradient, stays in zip(gradients, as_they_are, strict=True)
        ]

    def reduce(
        self,
        gradients: Sequence[Gradient],
        sources: Sequence[Any],
        weight: StepWeight | None = None,
        factor: float = 1.0,
    ) -> list[Gradient]:
        """Emits every start, in the order of the plan, and then every wait.

        A start depends on the gradients of its bucket alone. TensorFlow runs
        stateful ops of a function in the order in which they were traced, so
        no start may be traced after a wait.

        Args:
            gradients: In the order of their variables. None stays None.
            sources: Their variables, or the variables' names.
            weight: How much this rank's gradients count in an average; None if
                all ranks' count alike.
            factor: Multiplies every result.

        Returns:
            The reduced gradients, the same on every rank but for local ones.
        """
        if not self.active:
            return [scaled(gradient, factor) for gradient in gradients]
        step = current_step()
        if step is not None:
            step.communicated = True
        reduced = list(gradients)
        local = [
            index
            for index, source in enumerate(sources)
            if gradients[index] is not None and self._options.is_local(source)
        ]
        shared = [
            None if index in local else gradient
            for index, gradient in enumerate(gradients)
        ]
        shared, contexts = self._compress(shared)
        shared, plan = self._plan(shared, sources)
        started = [
            self._start(
                [shared[index] for index in bucket.indices],
                f"gradients/bucket{number}",
                weight,
                factor,
                wait_follows=number + 1 == len(plan.buckets),
            )
            for number, bucket in enumerate(plan.buckets)
        ]
        sparse = [i for i, g in enumerate(shared) if isinstance(g, tf.IndexedSlices)]
        share: Factor = 1.0
        if weight is not None and (
            sparse or (local and self._options.scale_local_gradients)
        ):
            share = weight.share()
        for index in sparse:
            reduced[index] = allreduce(
                shared[index],
                self._options.op,
                name=f"gradients/sparse{index}",
                prescale_factor=share,
                postscale_factor=factor,
                process_set=self.process_set,
            )
        local_factor = factor
        if self._options.scale_local_gradients:
            local_factor = share * (factor / self.process_set.size())
        for index in local:
            reduced[index] = scaled(gradients[index], local_factor)
        for bucket, pending in zip(plan.buckets, started, strict=True):
            tensors = pending if isinstance(pending, list) else allreduce_wait(pending)
            for index, tensor in zip(bucket.indices, tensors, strict=True):
                reduced[index] = tensor
        for index, context in contexts.items():
            reduced[index] = self._options.compressor.decompress(
                reduced[index], context
            )
        return reduced

    def _compress(
        self, gradients: list[Gradient]
    ) -> tuple[list[Gradient], dict[int, Any]]:
        """A user's own compression of those that are dense, and what undoes it."""
        compressor = self._options.compressor
        contexts: dict[int, Any] = {}
        if compressor is None:
            return gradients, contexts
        gradients = [
            _dense(gradient) if self._options.sparse_as_dense else gradient
            for gradient in gradients
        ]
        for index, gradient in enumerate(gradients):
            if tf.is_tensor(gradient) and not isinstance(gradient, tf.IndexedSlices):
                gradients[index], contexts[index] = compressor.compress(gradient)
        return gradients, contexts

    def _start(
        self,
        tensors: list[tf.Tensor],
        name: str,
        weight: StepWeight | None,
        factor: float,
        wait_follows: bool,
    ) -> PendingAllreduce | list[tf.Tensor]:
        """What is on its way; or the result, of an op that has no two halves."""
        options = self._options
        if options.op is ReduceOp.ADASUM:
            return adasum(
                tensors,
                name=name,
                postscale_factor=factor,
                compression=options.compression,
                process_set=self.process_set,
            )
        return allreduce_start(
            tensors,
            options.op,
            name=name,
            prescale_factor=1.0 / options.gradient_predivide_factor,
            postscale_factor=options.gradient_predivide_factor * factor,
            weight=None if weight is None else weight.amount,
            wait_follows=wait_follows,
            compression=options.compression,
            process_set=self.process_set,
        )

    def _plan(
        self, gradients: Sequence[Gradient], sources: Sequence[Any]
    ) -> tuple[list[Gradient], BucketPlan]:
        """The plan, and the gradients with those made dense that it says."""
        gradients = list(gradients)
        step = current_step()
        if (
            self._options.sparse_as_dense
            or self._options.op is ReduceOp.ADASUM
            # XLA must know how many slices all ranks have together.
            or (step is not None and step.compiled)
        ):
            gradients = [_dense(gradient) for gradient in gradients]
        specs = [_spec(g, s) for g, s in zip(gradients, sources, strict=True)]
        groups = self._groups(gradients, sources)
        plan = self._bucket_plan(specs, groups)
        agreement = job_number(), plan.digest()
        if agreement not in self._agreed:
            # Ranks meet a new plan together, when they trace the first step that
            # has it. One may trace again on its own, for a last batch of another
            # shape: that is the same plan, so it asks nobody.
            if agree_on_plan(plan, self.process_set):
                plan = self._with_choices(plan, gradients, groups)
            self._agreed[agreement] = plan
        start_alike(sources, self._options.is_local, agreement[1], self.process_set)
        plan = self._agreed[agreement]
        dense = {index for bucket in plan.buckets for index in bucket.indices}
        gradients = [_dense(g) if i in dense else g for i, g in enumerate(gradients)]
        return gradients, plan

    def _with_choices(
        self, plan: BucketPlan, gradients: Sequence[Gradient], groups: list[list[int]]
    ) -> BucketPlan:
        """The plan once the ranks have chosen what to make dense."""
        sparse = {
            index: SparseGradient.of(gradient)
            for index, gradient in enumerate(gradients)
            if isinstance(gradient, tf.IndexedSlices)
        }
        if not sparse or not self._sums_duplicates:
            return plan
        if self._options.sparse_as_dense is not None:
            return plan
        choices = choose_dense(list(sparse.values()), self.process_set)
        specs = list(plan.specs)
        for index, dense in zip(sparse, choices, strict=True):
            if dense:
                specs[index] = _spec(_dense(gradients[index]), specs[index].name)
        return self._bucket_plan(specs, groups)

    def _bucket_plan(
        self, specs: Sequence[GradientSpec], groups: list[list[int]]
    ) -> BucketPlan:
        size_bytes = self._options.bucket_size_bytes
        if size_bytes is None:
            size_bytes = bucket_size.current_bytes()
        return plan_buckets(specs, size_bytes, groups=groups)

    def _groups(
        self, gradients: Sequence[Gradient], sources: Sequence[Any]
    ) -> list[list[int]]:
        """Positions of the gradients that users put together."""
        count = self._options.num_groups
        if count:
            present = [i for i, g in enumerate(gradients) if g is not None]
            base, extra = divmod(len(present), count)
            ends = [base * n + min(n, extra) for n in range(count + 1)]
            return [present[a:b] for a, b in itertools.pairwise(ends)]
        if not self._options.groups:
            return []
        positions = {
            internals.variable_key(source): index
            for index, source in enumerate(sources)
            if not isinstance(source, str)
        }
        return [
            [positions[key] for key in group if key in positions]
            for group in self._options.groups
        ]


def scaled(gradient: Gradient, factor: Factor) -> Gradient:
    """`factor` times the gradient; the gradient itself for a factor of 1."""
    if gradient is None or (not tf.is_tensor(factor) and factor == 1.0):
        return gradient
    if isinstance(gradient, tf.IndexedSlices):
        values = scaled_values(gradient.values, to_factor(factor))
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return scaled_values(gradient, to_factor(factor))


def source_name(source: Any) -> str:
    """What messages call the variable of a gradient."""
    if isinstance(source, str):
        return source
    path = getattr(source, "path", None)
    if path is None and not (tf.is_tensor(source) and tf.executing_eagerly()):
        path = getattr(source, "name", None)  # Which eager tensors have not.
    return str(path or "source")


def _dense(gradient: Gradient) -> tf.Tensor | None:
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    return tf.ensure_shape(tf.convert_to_tensor(gradient), gradient.shape)


def _spec(gradient: Gradient, source: Any) -> GradientSpec:
    name = source_name(source)
    if gradient is None:
        return GradientSpec(name, None, 0, None)
    dtype = gradient.dtype
    if isinstance(gradient, tf.IndexedSlices):
        return GradientSpec(name, dtype.name, dtype.size, None)
    if not gradient.shape.is_fully_defined():
        raise ValueError(
            f"The gradient of '{name}' must have a static shape, to be put into a "
            f"bucket. Received: shape={gradient.shape}. Set it with "
            "tf.ensure_shape(gradient, variable.shape)."
        )
    return GradientSpec(name, dtype.name, dtype.size, tuple(gradient.shape))
