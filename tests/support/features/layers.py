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
from support.features.compare import compare, standard_callbacks
from support.features.optimizers import ADAM, SGD

# Weights on this many digits: moments are divided by a standard deviation.
LIMIT = 2e-6


# No biases before the normalization: it takes them out again, so their gradients
# are 0 but for rounding, of which Adam makes whole steps in one process too.

# Makes a layer, for the ranks or for one process.
Layer = Callable[..., keras.layers.Layer]
BatchNormalization = keras.layers.BatchNormalization


def _dense(seed: int, layer: Layer, **options: Any) -> keras.Model:
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.layers.Dense(8, use_bias=False),
            layer(momentum=0.9, **options),
            keras.layers.Activation("tanh"),
            layer(momentum=0.9, **options),
            keras.layers.Dense(1, activation="sigmoid", dtype="float32"),
        ]
    )


def _convolution(seed: int, layer: Layer, axis: int) -> keras.Model:
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.layers.Reshape((6, 1, 1)),
            keras.layers.Conv2D(4, (3, 1), use_bias=False),
            layer(momentum=0.9, axis=axis),
            keras.layers.Activation("relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )


def _masked(seed: int, layer: Layer) -> keras.Model:
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.layers.Embedding(20, 6, mask_zero=True),
            layer(momentum=0.9),
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
    return against_keras(_masked, SGD, data=data)


def _out_of_data() -> Difference:
    """In the last step, rank 0 alone has an example."""
    size, rank = ring.size(), ring.rank()
    data = training.dataset(training.BATCH * size * 5 + 1)
    model = _dense(1 + rank, ring.layers.SyncBatchNormalization)
    training.compile_model(model, ring.DistributedOptimizer(ADAM()))
    part = ring.data.shard(data, remainder="keep").batch(training.BATCH)
    history = model.fit(
        ring.data.join(part),
        epochs=2,
        shuffle=False,
        verbose=0,
        callbacks=standard_callbacks(),
    ).history
    state = training.as_bytes(model.get_weights())
    if rank != 0:
        return Difference(state=state)
    alone = training.compile_model(_DENSE(1), ADAM())
    expected = training.fit(alone, data, training.BATCH * size, epochs=2)
    return Difference(
        training.largest_difference(model.get_weights(), alone.get_weights()),
        training.history_difference(history, expected),
        state,
    )


def _keras_layer(seed: int) -> keras.Model:
    """Keras's own layer with the flag; the callbacks see to the rest."""
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.layers.Dense(8, use_bias=False),
            BatchNormalization(synchronized=True),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )


def _nested(seed: int) -> keras.Model:
    keras.utils.set_random_seed(seed)
    inner = keras.Sequential(
        [keras.layers.Dense(8, use_bias=False), BatchNormalization()]
    )
    return keras.Sequential([inner, keras.layers.Dense(1, activation="sigmoid")])


def _converted(seed: int) -> keras.Model:
    model = _nested(seed)
    assert ring.layers.synchronize_batch_normalization(model) == 1
    return model


def _loaded(seed: int) -> keras.Model:
    model = _dense(seed, ring.layers.SyncBatchNormalization)
    model.build((None, 6))
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "model.keras"
        model.save(path)
        return keras.models.load_model(path)


def _cloned(seed: int) -> keras.Model:
    model = _dense(seed, ring.layers.SyncBatchNormalization)
    model.build((None, 6))
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    return clone


def _frozen(seed: int, layer: Layer) -> keras.Model:
    model = _dense(seed, layer)
    model.layers[1].trainable = False
    return model


def against_keras(
    build: Callable[..., keras.Model],
    make_optimizer: Callable[[], Any] = ADAM,
    **options: Any,
) -> Difference:
    """Ours on the ranks, and Keras's own layer in one process."""
    return compare(
        make_optimizer,
        build=functools.partial(build, layer=ring.layers.SyncBatchNormalization),
        build_alone=functools.partial(build, layer=BatchNormalization),
        **{"steps": 10, **options},
    )


_DENSE = functools.partial(_dense, layer=BatchNormalization)

FEATURES = [
    Feature(name, measure, LIMIT, LIMIT)
    for name, measure in {
        "SyncBatchNormalization": lambda: against_keras(_dense),
        "SyncBatchNormalization, gradient accumulation": lambda: against_keras(
            _dense, functools.partial(SGD, gradient_accumulation_steps=2)
        ),
        "SyncBatchNormalization, images": lambda: against_keras(
            functools.partial(_convolution, axis=-1)
        ),
        "SyncBatchNormalization, axis=1": lambda: against_keras(
            functools.partial(_convolution, axis=1)
        ),
        "SyncBatchNormalization, masks": _with_masks,
        "SyncBatchNormalization, ranks out of data": _out_of_data,
        "SyncBatchNormalization, renorm": lambda: against_keras(
            functools.partial(_dense, renorm=True)
        ),
        "SyncBatchNormalization, frozen": lambda: against_keras(_frozen),
        "SyncBatchNormalization, steps_per_execution": lambda: against_keras(
            _dense,
            compile_model=functools.partial(
                training.compile_model, steps_per_execution=3
            ),
        ),
        "SyncBatchNormalization, jit_compile": lambda: against_keras(
            _dense,
            compile_model=functools.partial(training.compile_model, jit_compile=True),
        ),
        "SyncBatchNormalization, load_model": lambda: compare(
            ADAM, build=_loaded, build_alone=_DENSE, steps=10
        ),
        "SyncBatchNormalization, clone_model": lambda: compare(
            ADAM, build=_cloned, build_alone=_DENSE, steps=10
        ),
        "BatchNormalization(synchronized=True) and the callbacks": lambda: compare(
            ADAM, build=_keras_layer, steps=10
        ),
        "synchronize_batch_normalization": lambda: compare(
            ADAM, build=_converted, build_alone=_nested, steps=10
        ),
    }.items()
] + [
    Feature(
        "SyncBatchNormalization, mixed_float16",
        lambda: against_keras(_dense, SGD, policy="mixed_float16"),
        5e-3,
        5e-3,
    ),
]
