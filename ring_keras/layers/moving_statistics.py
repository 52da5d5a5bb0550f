"""One set of moving statistics for all ranks."""

from collections.abc import Callable
from typing import Any

import keras

from ring_keras import keras_internals as internals
from ring_keras.job.process_set import ProcessSet, global_process_set, has_peers
from ring_keras.layers.global_moments import GlobalMoments
from ring_keras.states.moving_moments import average_moments

__all__ = ["average_moving_statistics", "layers_apart"]


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
        >>> _ = layer(keras.ops.full((4, 1), float(ring.rank())), training=True)
        >>> ring.layers.average_moving_statistics(layer)
        >>> keras.ops.convert_to_numpy(layer.moving_mean)
        array([0.5], dtype=float32)

    Args:
        model: A built model, or a layer.
        process_set: Ranks taking part. Defaults to all.
    """
    process_set = process_set or global_process_set
    if has_peers(process_set):
        average_moments(layers_apart(model), process_set)


def layers_apart(
    model: keras.layers.Layer, is_local: Callable[[Any], bool] = lambda variable: False
) -> list[Any]:
    """The batch normalizations whose ranks have each seen their own batches.

    Args:
        model: A built model, or a layer.
        is_local: Whether each rank has its own value of a variable, by intent.
    """
    return [
        layer
        for layer in internals.batch_normalizations(model)
        if layer.built
        and layer.trainable
        and GlobalMoments.of(layer) is None
        and not is_local(layer.moving_mean)
    ]
