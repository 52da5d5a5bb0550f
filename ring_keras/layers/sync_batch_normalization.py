"""Batch normalization over the batches of all ranks."""

from typing import Any

import keras

from ring_keras import keras_internals as internals
from ring_keras.job.process_set import ProcessSet
from ring_keras.layers.global_moments import synchronize

__all__ = ["SyncBatchNormalization", "synchronize_batch_normalization"]


def SyncBatchNormalization(  # noqa: N802  Named like the class it was in Horovod.
    *, process_set: ProcessSet | None = None, **kwargs: Any
) -> keras.layers.BatchNormalization:
    """Makes a batch normalization whose mean and variance are those of all ranks.

    In training it normalizes with the moments of all ranks' batches together, as
    one process with the global batch would, forward and backward, also with uneven
    batches and masks. In inference it is an ordinary batch normalization.

    It is a `keras.layers.BatchNormalization`, so saved files need no ring_keras. A
    copy (`keras.models.load_model`, `keras.models.clone_model`) is not synchronized
    until it is passed to `synchronize_batch_normalization`; on TensorFlow also in `fit`
    with a callback of `ring_keras.callbacks`, which knows it by `synchronized=True`.
    Keras refuses that argument on torch and JAX, also in files.

    Each forward and each backward pass through it is one collective, and nothing
    overlaps it.

    Examples:
        >>> layer = ring.layers.SyncBatchNormalization()
        >>> batch = keras.ops.full((4, 1), float(ring.rank()))  # Their mean is 0.5.
        >>> keras.ops.convert_to_numpy(layer(batch, training=True))[0]
        array([-0.99...], dtype=float32)

    Args:
        process_set: Ranks whose batches count together. Defaults to those that
            train the model together.
        **kwargs: Passed to `keras.layers.BatchNormalization`.

    Returns:
        The layer.
    """
    kwargs.pop("synchronized", None)
    layer = keras.layers.BatchNormalization(**kwargs)
    synchronize(layer, process_set)
    return layer


def synchronize_batch_normalization(
    model: keras.layers.Layer, process_set: ProcessSet | None = None
) -> int:
    """Makes every batch normalization in a model a synchronized one.

    Use it for models that you have not built yourself, such as those of
    `keras.applications`, and for loaded models in your own training loop. After
    training, too: the next `fit` is traced anew.

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
        synchronize(layer, process_set)
    if layers and isinstance(model, keras.Model):
        internals.set_train_function(model, None)  # It may have been traced.
    return len(layers)
