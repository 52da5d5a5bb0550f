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

    In training it normalizes with the moments of all ranks' batches together, as
    one process with the global batch would, forward and backward, also with uneven
    batches and masks. In inference it is an ordinary batch normalization.

    It is a `keras.layers.BatchNormalization(synchronized=True)`, so saved files
    need no ring_keras. A copy (`keras.models.load_model`,
    `keras.models.clone_model`) is not synchronized until `fit` gets a callback of
    `ring_keras.callbacks`, or the model is passed to
    `synchronize_batch_normalization`.

    Each forward and each backward pass through it is one collective, and nothing
    overlaps it.

    Examples:
        >>> layer = ring.layers.SyncBatchNormalization()
        >>> batch = tf.fill([4, 1], float(ring.rank()))  # Their mean is 0.5.
        >>> layer(batch, training=True).numpy()[0]
        array([-0.99...], dtype=float32)

    Args:
        process_set: Ranks whose batches count together. Defaults to those that
            train the model together.
        **kwargs: Passed to `keras.layers.BatchNormalization`.

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

    Use it for models that you have not built yourself, such as those of
    `keras.applications`, and for loaded models in your own training loop. Call it
    before the model is compiled, or traced.

    Examples:
        >>> model = keras.Sequential([
        ...     keras.Input((2,)), keras.layers.BatchNormalization()])
        >>> ring.layers.synchronize_batch_normalization(model)
        1

    Args:
        model: The model, or a layer.
        process_set: As for `SyncBatchNormalization`.

    Returns:
        The number of such layers.
    """
    layers = internals.batch_normalizations(model)
    for layer in layers:
        layer.synchronized = True
        GlobalMoments(layer, process_set).install()
    return len(layers)
