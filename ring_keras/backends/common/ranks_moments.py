"""Mean and variance of a batch that is spread over the ranks, on torch and JAX.

Of each channel a rank has three numbers: how many values, their mean, and the sum of
their squared distances to that. They are put together into the three of all ranks.
"""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import keras
from keras import ops

from ring_keras import keras_internals as internals
from ring_keras.backends.common.hook import hooks_of, process_set_of
from ring_keras.backends.common.step import Step, current_step
from ring_keras.errors import RingKerasError
from ring_keras.job.process_set import ProcessSet, global_process_set, has_peers
from ring_keras.layers.global_moments import GlobalMoments
from ring_keras.values.reduce_op import ReduceOp

__all__ = ["NAME", "Part", "RanksMoments", "divided", "gradient_of_own"]

NAME = "batch_normalization"
"""Of the collectives, which all ranks make in the same order."""


@dataclass(frozen=True)
class Part:
    """What a rank is to one pass through a layer.

    Attributes:
        communicator_id: Of the ranks that take part.
        size: How many.
        counts: Whether this one has a batch for it.
    """

    communicator_id: int
    size: int
    counts: bool


class RanksMoments(GlobalMoments):
    """See `GlobalMoments`; each back end has a class of its own."""

    wide: ClassVar[str | None] = None
    """In which type ranks' numbers are put together; None: that of the inputs."""

    @abc.abstractmethod
    def _of_all_ranks(self, own: Any, part: Part, weight: Any) -> Any:
        """The three numbers of all ranks; a collective. Its gradient is another one.

        Args:
            own: This rank's, of shape (3, channels). Their gradient fits that of a loss
                averaged over the ranks: see `divided`.
            part: What this rank is to them.
            weight: What it counts for when gradients are averaged: a number, or an
                array of one.
        """

    def _moments(self, inputs: Any, mask: Any) -> tuple[Any, Any]:
        step = current_step()
        ranks = self._ranks(step)
        own = _own(inputs, mask, internals.reduction_axes(self._layer), self.wide)
        if not step.counts:
            # Not zeros alone: this rank is to be there in backward, too.
            own = ops.where(ops.zeros_like(own, "bool"), own, ops.zeros_like(own))
        if has_peers(ranks):
            part = Part(ranks.communicator_id(), ranks.size(), step.counts)
            own = self._of_all_ranks(own, part, _weight(step))
        count, mean, squares = own[0], own[1], own[2]
        if mask is not None:
            # Keras keeps a batch that is all masked from dividing by zero so.
            smoothed = count + keras.config.epsilon()
            whole, mean = mean, mean * (count / smoothed)
            squares = squares + count * ops.square(whole - mean)
            count = smoothed
        variance = ops.maximum(squares, 0.0) / ops.maximum(count, _TINY)
        if not step.counts:
            # Of a set of ranks none of which has a batch: the moving ones stay.
            there = count > 0.5
            layer = self._layer
            mean = ops.where(there, mean, ops.cast(layer.moving_mean, mean.dtype))
            moving = ops.cast(layer.moving_variance, variance.dtype)
            variance = ops.where(there, variance, moving)
        return ops.cast(mean, inputs.dtype), ops.cast(variance, inputs.dtype)

    def _ranks(self, step: Step) -> ProcessSet:
        if self.process_set is not None:
            return self.process_set
        return global_process_set if step.model is None else process_set_of(step.model)


# Less than any number of values, but 0.
_TINY = 1e-30


def _weight(step: Step) -> Any:
    """1 where ranks count alike, as in a loop of one's own."""
    if step.model is None or step.adds_up:
        return 1.0
    ops_of_optimizers = {hook.options.op for hook in hooks_of(step.model)}
    if len(ops_of_optimizers) > 1:
        raise RingKerasError(
            f"[RK686] model '{step.model.name}' has layers of "
            "ring_keras.layers.SyncBatchNormalization, and optimizers that reduce "
            f"gradients by {' and '.join(sorted(map(str, ops_of_optimizers)))}: a "
            "gradient through such a layer cannot be right for both. Give "
            "ring_keras.DistributedOptimizer one op for all."
        )
    return step.weight if ReduceOp.AVERAGE in ops_of_optimizers else 1.0


def _own(inputs: Any, mask: Any, axes: list[int], wide: str | None) -> Any:
    """This rank's three numbers, of shape (3, channels).

    Of distances to about the mean, which keeps the digits that plain sums lose.
    """
    present = None
    if mask is not None:
        present = ops.cast(ops.expand_dims(mask, -1), "bool")
        present = ops.broadcast_to(present, inputs.shape)
        inputs = ops.where(present, inputs, 0)
    total = ops.sum(inputs, axes, keepdims=True)
    if present is None:
        count = ops.full_like(total, math.prod(inputs.shape[axis] for axis in axes))
    else:
        count = ops.sum(ops.cast(present, inputs.dtype), axes, keepdims=True)
    divisor = ops.maximum(count, 1.0)
    # Any number near the mean would do, so nothing flows back through it.
    center = ops.stop_gradient(total / divisor)
    distances = inputs - center
    if present is not None:
        distances = ops.where(present, distances, 0)
    distance = ops.sum(distances, axes)
    squared = ops.sum(ops.square(distances), axes)
    count, center, divisor, distance, squared = (
        ops.cast(ops.reshape(part, (-1,)), wide or inputs.dtype)
        for part in (count, center, divisor, distance, squared)
    )
    beyond = distance / divisor
    return ops.stack([count, center + beyond, squared - distance * beyond])


def gradient_of_own(own: Any, everyones: Any, upstream: Any) -> Any:
    """That of one rank's three numbers, of those of all ranks' ones.

    Args:
        own: The rank's, of shape (3, channels).
        everyones: All ranks' together.
        upstream: The gradient of these.
    """
    of_one = own[0] / ops.maximum(everyones[0], 1.0) * upstream[1]
    apart = own[1] - everyones[1]
    return ops.stack(
        [
            ops.zeros_like(own[0]),
            of_one + 2.0 * own[0] * apart * upstream[2],
            upstream[2],
        ]
    )


def divided(total: Any, weight: Any) -> Any:
    """The gradient of what this rank has given, of the sum of all ranks'.

    Each rank differentiates its own loss, and is weighted when gradients are averaged.
    What others' losses owe to this rank's batch is to be weighted by theirs, so it was
    multiplied by it, and is divided by this one's here.

    Args:
        total: The sum of the ranks' gradients, each times its weight.
        weight: This rank's: an array.
    """
    # Of a batch that counts for nothing it would be infinite.
    counts = weight > 1e10 * internals.NO_WEIGHT
    return ops.where(counts, total / ops.where(counts, weight, 1.0), 0.0)
