"""What a rank whose joined data have ended leaves in a metric that keeps a list."""

from __future__ import annotations

import numpy as np
import pytest
from support.back_ends import BACK_END, begin, needs_back_end, ranks

needs_back_end()

pytestmark = [
    pytest.mark.engines,
    pytest.mark.timeout(400),
    pytest.mark.skipif(BACK_END == "jax", reason="metrics are traced there"),
]


def worker():
    ring = begin()
    import keras

    class Seen(keras.metrics.Metric):
        def __init__(self):
            super().__init__(name="seen")
            self.values = []

        def update_state(self, y_true, y_pred, sample_weight=None):
            values = keras.ops.convert_to_numpy(keras.ops.stop_gradient(y_pred))
            self.values += values.ravel().tolist()

        def result(self):
            return float(len(self.values))

        def reset_state(self):
            self.values = []

        def rank_state(self):
            return self.values

        def merge_ranks(self, states):
            self.values = [value for values in states for value in values]

    count = (4, 12)[ring.rank()]
    x = np.ones((count, 3), "float32")
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    optimizer = ring.DistributedOptimizer("sgd")
    model.compile(optimizer, "mse", metrics=[Seen()], run_eagerly=True)
    x, y = ring.data.join((x, x[:, :1]))
    return model.fit(x, y, batch_size=4, epochs=2, verbose=0).history["seen"]


def test_it_sees_each_example_once():
    assert ranks(worker, 2) == [[16.0, 16.0]] * 2
