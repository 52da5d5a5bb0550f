"""Reduces the gradients of a step: starts first, waits last."""

from collections.abc import Sequence
from typing import TypeAlias

import tensorflow as tf

from ring_keras import bucket_size
from ring_keras.buckets import BucketPlan, GradientSpec, plan_buckets
from ring_keras.communicator import ProcessSet, job_number
from ring_keras.compression import Compression
from ring_keras.ops.allreduce import allreduce
from ring_keras.ops.grouped_allreduce import allreduce_start, allreduce_wait
from ring_keras.optimizers.plan_agreement import agree_on_plan
from ring_keras.optimizers.step_scope import StepWeight, current_step
from ring_keras.reduce_op import ReduceOp

__all__ = ["Gradient", "GradientReducer"]

Gradient: TypeAlias = tf.Tensor | tf.IndexedSlices | None


class GradientReducer:
    """Reduces lists of gradients over the ranks of a process set.

    Args:
        op: `AVERAGE` or `SUM`.
        process_set: Ranks taking part. On a rank outside of it, `reduce`
            returns its input.
        bucket_size_bytes: See `plan_buckets`; None for the configured size.
        compression: How float32 travels between hosts.
    """

    def __init__(
        self,
        op: ReduceOp | str,
        process_set: ProcessSet,
        bucket_size_bytes: int | None,
        compression: Compression | str = Compression.none,
    ) -> None:
        self.op = ReduceOp(op)
        self.process_set = process_set
        self._bucket_size_bytes = bucket_size_bytes
        self._compression = Compression(compression)
        # With the number of the job in which the ranks agreed.
        self._agreed: set[tuple[int, bytes]] = set()
        if self.op not in (ReduceOp.AVERAGE, ReduceOp.SUM):
            raise ValueError(
                "Gradients can be combined with op=ring_keras.Average or "
                f"op=ring_keras.Sum. Received: op={op!r}"
            )

    @property
    def active(self) -> bool:
        """Whether there is another rank to reduce with."""
        return self.process_set.size() > 1 and self.process_set.included()

    def step_weight(self) -> StepWeight | None:
        """How much this rank counts in the current step; None for all alike."""
        step = current_step()
        if step is None or self.op is not ReduceOp.AVERAGE:
            return None
        return step.weight if step.process_set is self.process_set else None

    def reduce(
        self,
        gradients: Sequence[Gradient],
        names: Sequence[str],
        weight: StepWeight | None = None,
    ) -> list[Gradient]:
        """Emits every start, in the order of the plan, and then every wait.

        A start depends on the gradients of its bucket alone. TensorFlow runs
        stateful ops of a function in the order in which they were traced, so
        no start may be traced after a wait.

        Args:
            gradients: In the order of their variables. None stays None.
            names: Their variables', for messages.
            weight: How much this rank's gradients count in an average; None if
                all ranks' count alike.

        Returns:
            The reduced gradients, the same on every rank.
        """
        if not self.active:
            return list(gradients)
        step = current_step()
        if step is not None:
            step.communicated = True
        plan = self._plan(gradients, names)
        reduced = list(gradients)
        started = [
            allreduce_start(
                [gradients[index] for index in bucket.indices],
                self.op,
                name=f"gradients/bucket{number}",
                weight=None if weight is None else weight.amount,
                wait_follows=number + 1 == len(plan.buckets),
                compression=self._compression,
                process_set=self.process_set,
            )
            for number, bucket in enumerate(plan.buckets)
        ]
        sparse = [
            index
            for index, gradient in enumerate(gradients)
            if isinstance(gradient, tf.IndexedSlices)
        ]
        if sparse:
            factor = 1.0 if weight is None else weight.share()
            for index in sparse:
                reduced[index] = allreduce(
                    gradients[index],
                    self.op,
                    name=f"gradients/sparse{index}",
                    prescale_factor=factor,
                    process_set=self.process_set,
                )
        for bucket, pending in zip(plan.buckets, started, strict=True):
            for index, tensor in zip(
                bucket.indices, allreduce_wait(pending), strict=True
            ):
                reduced[index] = tensor
        return reduced

    def _plan(self, gradients: Sequence[Gradient], names: Sequence[str]) -> BucketPlan:
        size_bytes = self._bucket_size_bytes
        if size_bytes is None:
            size_bytes = bucket_size.current_bytes()
        plan = plan_buckets(
            [_spec(g, name) for g, name in zip(gradients, names, strict=True)],
            size_bytes,
        )
        agreement = job_number(), plan.digest()
        if agreement not in self._agreed:
            # Ranks meet a new plan together, when they trace the first step that
            # has it. One may trace again on its own, for a last batch of another
            # shape: that is the same plan, so it asks nobody.
            agree_on_plan(plan, self.process_set)
            self._agreed.add(agreement)
        return plan


def _spec(gradient: Gradient, name: str) -> GradientSpec:
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
