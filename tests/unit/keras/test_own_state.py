"""What a step of a rank without data must leave as it was."""

from __future__ import annotations

import keras

from ring_keras.states.own_state import own_state


def test_it_is_what_layers_keep_of_their_batches():
    frozen = keras.layers.Dense(3)
    frozen.trainable = False
    own, common = (
        keras.layers.BatchNormalization(synchronized=flag) for flag in (False, True)
    )
    dropout = keras.layers.Dropout(0.5)
    spectral = keras.layers.SpectralNormalization(keras.layers.Dense(2))
    layers = [frozen, own, common, dropout, spectral, keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((2,)), *layers])
    model.compile("sgd", "mse")

    found = list(map(id, own_state(model)))

    expected = [own.moving_mean, own.moving_variance, dropout.seed_generator.state]
    assert set(found) == {id(v) for v in [*expected, *model.metrics_variables]}
    assert len(found) == len(set(found))
