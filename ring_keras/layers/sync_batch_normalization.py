"""Batch normalization over the batches of all ranks."""

from typing import Any

import keras

from ring_keras import keras_internals as internals
from ring_keras.job.process_set import ProcessSet
from ring_keras.layers.global_moments import GlobalMoments

__all__ = ["SyncBatchNormalization", "synchronize_batch_normalization"]


def SyncBatchNormalization(  # noqa: N802  Named like the class it was in Horovod.
    *, process_set: ProcessSet | None = None, **kwargs: Any
) -> keras.layers.BatchNormalization:
    """Makes a batch normalization whose mean and variance are those of all ranks.

    In training it normalizes with the moments of the ranks' batches taken
    together, as one process with the global batch would, forward and backward,
    with uneven batches and masks too. In inference it is the layer that it was.

    It is an ordinary `keras.layers.BatchNormalization(synchronized=True)`, so
    saved files are ordinary ones. A copy (`keras.models.load_model`,
    `keras.models.clone_model`) sees its own rank's batch alone, until a callback
    of `ring_keras.callbacks` is given to `fit`, or it is passed to
    `synchronize_batch_normalization`.

    Each forward and each backward pass through it is one collective that
    nothing overlaps.

    Examples:
        >>> layer = ring.layers.SyncBatchNormalization()
        >>> batch = tf.fill([4, 1], float(ring.rank()))  # Their mean is 0.5.
        >>> layer(batch, training=True).numpy()[0]
        array([-0.99...], dtype=float32)

    Args:
        process_set: Ranks whose batches are taken together. Defaults to those
            that train the model together.
        **kwargs: For `keras.layers.BatchNormalization`.

    Returns:
        The layer.
    """
    layer = keras.layers.BatchNormalization(**{**kwargs, "synchronized": True})
    GlobalMoments(layer, process_set).install()
    return layer


def synchronize_batch_normalization(
    model: keras.layers.Layer, process_set: ProcessSet | None = None
) -> int:
    """Makes every batch normalization in a model a synchronized one.

    For models that others have built, such as those of `keras.applications`,
    and for loaded ones in a training loop of one's own. Call it before the model
    is compiled, or traced.

    Examples:
        >>> model = keras.Sequential([
        ...     keras.Input((2,)), keras.layers.BatchNormalization()])
        >>> ring.layers.synchronize_batch_normalization(model)
        1

    Args:
        model: The model, or a layer.
        process_set: As for `SyncBatchNormalization`.

    Returns:
        How many there are.
    """
    layers = internals.batch_normalizations(model)
    for layer in layers:
        layer.synchronized = True
        GlobalMoments(layer, process_set).install()
    return len(layers)
