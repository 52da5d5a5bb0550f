"""What is said of layers whose state differs where ranks' data have ended."""

from __future__ import annotations

import keras
import pytest
from support import training
from support.log_texts import LogTexts

import ring_keras as ring


class CountsSteps(keras.layers.Layer):
    def __init__(self, dtype):
        super().__init__()
        self.count = self.add_weight(
            shape=(), dtype=dtype, initializer="zeros", trainable=False
        )

    def call(self, x, training=False):
        if training:
            self.count.assign_add(1)
        return x


def counting_worker(dtype):
    model = keras.Sequential(
        [keras.Input((6,)), CountsSteps(dtype), keras.layers.Dense(1)]
    )
    model.compile(ring.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse")
    # Rank 0 has one batch, and rank 1 has two.
    mine = training.dataset(4 * (1 + ring.rank())).batch(4)
    with LogTexts() as said:
        try:
            model.fit(ring.data.join(mine), verbose=0)
        except ring.RankMismatchError as error:
            said.append(str(error))
    return said


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "code"), [("int32", "RK325"), ("float32", "RK650")])
def test_a_state_that_counts_steps_differs_because_data_are_joined(
    rank_pool, dtype, code
):
    said, _ = rank_pool(2).run(counting_worker, args=(dtype,))

    (it,) = [text for text in said if code in text]
    assert "These data are joined (ring_keras.data.join)" in it
    assert "a rank whose data have ended" in it
