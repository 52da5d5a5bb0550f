"""What a file has of a model, with the variables themselves."""

from __future__ import annotations

import io

import keras
import numpy as np
import pytest
import tensorflow as tf
from support.checkpointed import contents

from ring_keras import keras_internals as internals

layers = keras.layers


def lookup():
    words = layers.StringLookup(vocabulary=["a", "b", "c"])
    inputs = keras.Input((1,), dtype="string")
    outputs = layers.Dense(1)(layers.Flatten()(layers.Embedding(4, 2)(words(inputs))))
    return keras.Model(inputs, outputs), np.array([["a"], ["c"]])


def nested():
    inner = keras.Sequential([keras.Input((3,)), layers.Dense(2), layers.Dropout(0.5)])
    whole = keras.Sequential([keras.Input((3,)), inner, layers.Dense(1)])
    return whole, np.ones((2, 3), np.float32)


def recurrent():
    cells = layers.GRU(3, stateful=True, dropout=0.1)
    whole = keras.Sequential(
        [keras.Input((4, 3), batch_size=2), cells, layers.Dense(1)]
    )
    return whole, np.ones((2, 4, 3), np.float32)


def normalized():
    known = layers.Normalization()
    known.adapt(np.arange(6.0).reshape(2, 3))
    whole = keras.Sequential([keras.Input((3,)), known, layers.BatchNormalization()])
    return whole, np.ones((2, 3), np.float32)


def in_bfloat16():
    dense = layers.Dense(1, dtype="bfloat16")
    return keras.Sequential([keras.Input((3,)), dense]), np.ones((2, 3), np.float32)


@pytest.mark.parametrize(
    "make",
    [
        in_bfloat16,
        *(
            pytest.param(make, marks=pytest.mark.slow)
            for make in (lookup, nested, recurrent, normalized)
        ),
    ],
)
def test_what_is_put_together_is_what_keras_saves(tmp_path, make):
    model, x = make()
    # Keras does not accumulate gradients in bfloat16.
    passes = None if make is in_bfloat16 else 2
    adam = keras.optimizers.Adam(0.01, gradient_accumulation_steps=passes, use_ema=True)
    optimizer = keras.optimizers.LossScaleOptimizer(adam)
    model.compile(optimizer, loss="mse", metrics=["mae"])
    model.fit(tf.data.Dataset.from_tensors((x, np.zeros((2, 1)))), verbose=0)
    model.save(tmp_path / "keras.keras")
    groups = internals.file_groups(model)
    values = [value for group in groups for value in group.values.values()]
    assert values and all(map(internals.is_variable, values))
    # A number for each, and the values by these, as a checkpoint has them.
    arrays = [np.asarray(value.numpy()) for value in values]
    numbers = iter(range(len(values)))
    for group in groups:
        group.values.update({name: next(numbers) for name in group.values})
    file = io.BytesIO()
    internals.write_groups(file, groups, lambda number: arrays[number])
    archive = internals.archive_without_weights(model)
    whole = internals.with_weights(archive, file.getvalue())
    (tmp_path / "ours.keras").write_bytes(whole)

    assert contents(tmp_path / "ours.keras") == contents(tmp_path / "keras.keras")
    assert not internals.replacement(optimizer, internals.SAVE_VARIABLES)
    keras.models.load_model(tmp_path / "ours.keras")
