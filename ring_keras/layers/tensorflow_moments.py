"""Mean and variance of a batch that is spread over the ranks, on TensorFlow."""

from typing import Any

import keras
import tensorflow as tf

from ring_keras import keras_internals as internals
from ring_keras.job.process_set import ProcessSet, global_process_set, has_peers
from ring_keras.layers.global_moments import GlobalMoments
from ring_keras.ops.allreduce import allreduce
from ring_keras.ops.step import in_a_step
from ring_keras.ops.training_step import note_weighted
from ring_keras.optimizers.step_scope import current_step
from ring_keras.values.reduce_op import ReduceOp

__all__ = ["TensorFlowMoments"]


class TensorFlowMoments(GlobalMoments):
    """See `GlobalMoments`."""

    def install(self) -> None:
        """A copy of the layer has the flag, by which it is found."""
        self._layer.synchronized = True
        super().install()

    def _moments(
        self, inputs: tf.Tensor, mask: tf.Tensor | None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        process_set = self._ranks()
        sums = _local_sums(inputs, mask, internals.reduction_axes(self._layer))
        step = current_step()
        present = None if step is None else step.present
        if present is not None:
            sums = tf.where(present, sums, 0)
        if has_peers(process_set):
            sums = _sum_over_ranks(sums, process_set)
            if present is not None:
                # Nor does a row of zeros have a part in the gradient of the sums.
                sums = tf.where(present, sums, tf.stop_gradient(sums))
        count, total, squares = tf.unstack(sums)
        # Keras keeps a batch that is all masked from dividing by zero so.
        smoothed = count if mask is None else count + keras.config.epsilon()
        mean = tf.math.divide_no_nan(total, smoothed)
        distances = squares - 2.0 * mean * total + tf.square(mean) * count
        variance = tf.math.divide_no_nan(tf.maximum(distances, 0.0), smoothed)
        if present is not None:
            # Of a set of ranks none of which has a batch: the moving ones stay.
            mean = tf.where(count > 0, mean, _current(self._layer.moving_mean))
            variance = tf.where(
                count > 0, variance, _current(self._layer.moving_variance)
            )
        return tf.cast(mean, inputs.dtype), tf.cast(variance, inputs.dtype)

    def _ranks(self) -> ProcessSet:
        if self.process_set is not None:
            return self.process_set
        step = current_step()
        return global_process_set if step is None else step.process_set


def _current(statistic: Any) -> tf.Tensor:
    return tf.cast(tf.convert_to_tensor(statistic), tf.float64)


def _local_sums(
    inputs: tf.Tensor, mask: tf.Tensor | None, axes: list[int]
) -> tf.Tensor:
    """Per channel: how many values, their sum, and the sum of their squares.

    Taken of distances to about the mean, and put together in float64, which
    keeps the digits that plain sums lose.
    """
    present = None
    if mask is not None:
        present = tf.cast(tf.expand_dims(mask, -1), tf.bool)
        present = tf.broadcast_to(present, tf.shape(inputs))
        inputs = tf.where(present, inputs, 0)
    total = tf.reduce_sum(inputs, axes, keepdims=True)
    if present is None:
        rows = tf.reduce_prod(tf.gather(tf.shape(inputs, tf.int64), axes))
        count = tf.fill(tf.shape(total), tf.cast(rows, inputs.dtype))
    else:
        count = tf.reduce_sum(tf.cast(present, inputs.dtype), axes, keepdims=True)
    # Any number near the mean would do, so nothing flows back through it.
    center = tf.stop_gradient(tf.math.divide_no_nan(total, count))
    distances = inputs - center
    if present is not None:
        distances = tf.where(present, distances, 0)
    distance = tf.reduce_sum(distances, axes)
    squared = tf.reduce_sum(tf.square(distances), axes)
    count, center, distance, squared = (
        tf.cast(tf.reshape(part, [-1]), tf.float64)
        for part in (count, center, distance, squared)
    )
    total = distance + count * center
    return tf.stack([count, total, squared + center * (distance + total)])


def _sum_over_ranks(sums: tf.Tensor, process_set: ProcessSet) -> tf.Tensor:
    """The sum, whose gradient fits that of a loss averaged over the ranks.

    Each rank differentiates its own loss, and is weighted by its amount of
    examples when the gradients are averaged. What others' losses owe to this
    rank's batch has to be weighted by theirs, so it is divided by its own here.
    """
    step = current_step()
    amount = None if step is None or step.weight is None else step.weight.amount
    # By order, since the ranks trace the same layers in the same order, while the
    # names of layers may differ between ranks.
    name = "batch_normalization"
    if step is not None:
        name += str(step.batch_normalizations)
        step.batch_normalizations += 1

    def over_ranks(values: tf.Tensor, name: str) -> tf.Tensor:
        with in_a_step():
            return allreduce(values, ReduceOp.SUM, name=name, process_set=process_set)

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def summed(values: tf.Tensor) -> tuple[tf.Tensor, Any]:
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            now = current_step()
            # None where gradients are not averaged, as by a tape that adds them up.
            counts_alike = now is not None and now.weight is None
            if amount is None or counts_alike:
                return over_ranks(upstream, f"{name}/gradient")
            note_weighted()
            upstream = over_ranks(upstream * amount, f"{name}/gradient")
            # Of a batch that counts for nothing, in float16 that would be infinite.
            counts = amount > 1e10 * internals.NO_WEIGHT
            return tf.where(counts, upstream / amount, 0)

        return over_ranks(values, name), gradient

    return summed(sums)
