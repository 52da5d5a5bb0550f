"""The moving statistics of batch normalization, of all ranks' batches together."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from ring_keras import _native
from ring_keras.job.process_set import ProcessSet
from ring_keras.values.reduce_op import ReduceOp

__all__ = ["average_moments"]


def average_moments(
    layers: Iterable[keras.layers.BatchNormalization], process_set: ProcessSet
) -> None:
    """Gives them the mean and the variance of the mixture; collective if there are any.

    Args:
        layers: Built ones, the same on every rank.
        process_set: The ranks; all call this.
    """
    moments = [pair for layer in layers for pair in _pairs(layer)]
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
