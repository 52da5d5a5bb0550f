"""Batch normalization over all ranks."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import ring_keras as ring
from support import training
from support.features import Difference, Feature
from support.features.compare import compare
from support.features.optimizers import ADAM, SGD

# Weights on this many digits: moments are divided by a standard deviation.
LIMIT = 2e-6


def _batch_normalization(**options: Any) -> keras.layers.Layer:
    """The same on all ranks as alone: there, `synchronized` does nothing."""
    return ring.layers.SyncBatchNormalization(momentum=0.9, **options)


def _dense(seed: int, **options: Any) -> keras.Model:
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.layers.Dense(8),
            _batch_normalization(**options),
            keras.layers.Activation("tanh"),
            _batch_normalization(**options),
            keras.layers.Dense(1, activation="sigmoid", dtype="float32"),
        ]
    )


def _convolution(seed: int, axis: int) -> keras.Model:
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.layers.Reshape((6, 1, 1)),
            keras.layers.Conv2D(4, (3, 1)),
            _batch_normalization(axis=axis),
            keras.layers.Activation("relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )


def _masked(seed: int) -> keras.Model:
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.layers.Embedding(20, 6, mask_zero=True),
            _batch_normalization(),
            _DropMask(),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )


class _DropMask(keras.layers.Layer):
    """So that the mask reaches the batch normalization alone, and no loss."""

    supports_masking = True

    def call(self, inputs, mask=None):
        return tf.where(mask[..., tf.newaxis], inputs, 0)

    def compute_mask(self, inputs, previous_mask=None):
        return None


def _with_masks() -> Difference:
    count = training.steps_of(10, ring.size())
    generator = np.random.default_rng(3)
    # Words of 0 are masked: on each rank another share of them.
    words = generator.integers(0, 20, size=(count, 5))
    words *= generator.uniform(size=words.shape) < generator.uniform(size=(count, 1))
    labels = generator.integers(0, 2, size=(count, 1)).astype(np.float32)
    data = tf.data.Dataset.from_tensor_slices((words, labels))
    return compare(SGD, build=_masked, data=data)


def _keras_layer(seed: int) -> keras.Model:
    """Keras's own layer with the flag; the callbacks see to the rest."""
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.layers.Dense(8),
            keras.layers.BatchNormalization(synchronized=True),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )


def _converted(seed: int) -> keras.Model:
    keras.utils.set_random_seed(seed)
    inner = keras.Sequential([keras.layers.Dense(8), keras.layers.BatchNormalization()])
    model = keras.Sequential([inner, keras.layers.Dense(1, activation="sigmoid")])
    assert ring.layers.synchronize_batch_normalization(model) == 1
    return model


def _loaded(seed: int) -> keras.Model:
    model = _dense(seed)
    model.build((None, 6))
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "model.keras"
        model.save(path)
        return keras.models.load_model(path)


def _cloned(seed: int) -> keras.Model:
    model = _dense(seed)
    model.build((None, 6))
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    return clone


def _frozen(seed: int) -> keras.Model:
    model = _dense(seed)
    model.layers[1].trainable = False
    return model


def _case(
    build: Callable[[int], keras.Model], **options: Any
) -> Callable[[], Difference]:
    return functools.partial(compare, ADAM, build=build, steps=10, **options)


FEATURES = [
    Feature("SyncBatchNormalization", _case(_dense), LIMIT, LIMIT),
    Feature(
        "SyncBatchNormalization, gradient accumulation",
        lambda: compare(
            functools.partial(SGD, gradient_accumulation_steps=2), build=_dense
        ),
        LIMIT,
        LIMIT,
    ),
    Feature(
        "SyncBatchNormalization, images",
        _case(functools.partial(_convolution, axis=-1)),
        LIMIT,
        LIMIT,
    ),
    Feature(
        "SyncBatchNormalization, axis=1",
        _case(functools.partial(_convolution, axis=1)),
        LIMIT,
        LIMIT,
    ),
    Feature("SyncBatchNormalization, masks", _with_masks, LIMIT, LIMIT),
    Feature(
        "SyncBatchNormalization, renorm",
        _case(functools.partial(_dense, renorm=True)),
        LIMIT,
        LIMIT,
    ),
    Feature("SyncBatchNormalization, frozen", _case(_frozen), LIMIT, LIMIT),
    Feature(
        "SyncBatchNormalization, steps_per_execution",
        _case(
            _dense,
            compile_model=functools.partial(
                training.compile_model, steps_per_execution=3
            ),
        ),
        LIMIT,
        LIMIT,
    ),
    Feature(
        "SyncBatchNormalization, mixed_float16",
        lambda: compare(SGD, build=_dense, policy="mixed_float16", steps=10),
        5e-3,
        5e-3,
    ),
    Feature(
        "BatchNormalization(synchronized=True) and the callbacks",
        _case(_keras_layer),
        LIMIT,
        LIMIT,
    ),
    Feature("synchronize_batch_normalization", _case(_converted), LIMIT, LIMIT),
    Feature("SyncBatchNormalization, load_model", _case(_loaded), LIMIT, LIMIT),
    Feature("SyncBatchNormalization, clone_model", _case(_cloned), LIMIT, LIMIT),
]
