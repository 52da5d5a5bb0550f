"""One set of moving statistics for all ranks."""

from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from ring_keras import _native
from ring_keras import keras_internals as internals
from ring_keras.job.process_set import ProcessSet, global_process_set, has_peers
from ring_keras.layers.global_moments import GlobalMoments
from ring_keras.values.reduce_op import ReduceOp

__all__ = ["average_moving_statistics"]


def average_moving_statistics(
    model: keras.layers.Layer, process_set: ProcessSet | None = None
) -> None:
    """Gives all ranks the moving mean and variance of all their batches together.

    The moving statistics of a batch normalization that is not synchronized are those
    of its own rank's batches, so ranks would evaluate different models.
    `ring_keras.callbacks.MetricAverage` calls this function at the end of every
    epoch, before validation and before callbacks save anything. In your own training
    loop, call it on every rank before you evaluate or save.

    Ranks count alike, because each has made the same number of updates. With a `pace`
    of `ring_keras.DiLoCo` the numbers differ, and ranks count alike all the same. The
    variance is that of the mixture of the ranks' distributions: the mean of their
    variances plus the variance of their means. Without the second term it would be too
    small if ranks see different data. With it, it is still not larger than in one
    process with the global batch, in which every batch has the differences between the
    ranks' data.

    Layers that are frozen or synchronized are already equal on all ranks, and do not
    change.

    Examples:
        >>> layer = keras.layers.BatchNormalization(momentum=0.0)
        >>> _ = layer(tf.fill([4, 1], float(ring.rank())), training=True)
        >>> ring.layers.average_moving_statistics(layer)
        >>> keras.ops.convert_to_numpy(layer.moving_mean)
        array([0.5], dtype=float32)

    Args:
        model: A built model, or a layer.
        process_set: Ranks taking part. Defaults to all.
    """
    process_set = process_set or global_process_set
    if not has_peers(process_set):
        return
    moments = [
        pair
        for layer in internals.batch_normalizations(model)
        if layer.built and layer.trainable and GlobalMoments.of(layer) is None
        for pair in _pairs(layer)
    ]
    if not moments:
        return
    parts = [part for pair in moments for part in pair.read()]
    averaged = _native.allreduce(
        np.concatenate(parts),
        op=ReduceOp.AVERAGE.value,
        name="moving_statistics",
        communicator_id=process_set.communicator_id(),
    )
    ends = np.cumsum([len(part) for part in parts])[:-1]
    new = iter(np.split(averaged, ends))
    for pair in moments:
        pair.write(next(new), next(new))


@dataclass(frozen=True)
class _Moments:
    """A moving mean and the spread around it.

    Attributes:
        mean: Variable.
        variance: Variable, or None.
        deviation: Variable, or None: the root of variance plus `epsilon`.
        epsilon: What the layer adds to a variance before its root.
    """

    mean: Any
    variance: Any
    deviation: Any
    epsilon: float

    def read(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """First and second moment, which average to those of the mixture."""
        mean = np.asarray(self.mean.numpy(), np.float64)
        if self.variance is not None:
            variance = np.asarray(self.variance.numpy(), np.float64)
        else:
            deviation = np.asarray(self.deviation.numpy(), np.float64)
            variance = deviation**2 - self.epsilon
        return mean, variance + mean**2

    def write(self, first: np.ndarray[Any, Any], second: np.ndarray[Any, Any]) -> None:
        """Takes the mixture's."""
        variance = np.maximum(second - first**2, 0.0)
        self.mean.assign(first)
        if self.variance is not None:
            self.variance.assign(variance)
        if self.deviation is not None:
            self.deviation.assign(np.sqrt(variance + self.epsilon))


def _pairs(layer: keras.layers.BatchNormalization) -> list[_Moments]:
    mean, variance, epsilon = layer.moving_mean, layer.moving_variance, layer.epsilon
    if not getattr(layer, "renorm", False):  # Older Keras has no such argument.
        return [_Moments(mean, variance, None, epsilon)]
    return [
        _Moments(mean, variance, layer.moving_stddev, epsilon),
        _Moments(layer.renorm_mean, None, layer.renorm_stddev, epsilon),
    ]
