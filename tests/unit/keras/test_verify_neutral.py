"""What `verify` switches off."""

from typing import Any

import keras
import numpy as np

from ring_keras.verify.neutral import neutralize


class Shifts(keras.layers.Layer):
    """An augmentation of one's own."""

    def __init__(self) -> None:
        super().__init__(name="shifts")
        self.numbers = keras.random.SeedGenerator(1)

    def call(self, x: Any, training: bool = False) -> Any:
        return x + keras.random.uniform((), seed=self.numbers) if training else x


class Augmented(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.shifts = Shifts()
        self.flips = keras.layers.RandomFlip("horizontal", name="flips")

    def call(self, x: Any, training: bool = False) -> Any:
        return self.flips(self.shifts(x, training=training), training=training)


def test_augmentation_is_switched_off() -> None:
    model = Augmented()
    x = np.arange(24, dtype=np.float32).reshape(1, 4, 3, 2)
    assert not np.array_equal(model(x, training=True), x)

    assert {*neutralize(model, distributed=False).quiet} == {"shifts", "flips"}

    assert np.array_equal(model(x, training=True), x)
