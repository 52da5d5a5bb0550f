"""Models that decide in Python, while they run, what to do with a batch."""

from __future__ import annotations

import keras
import tensorflow as tf
from support import training

import ring_keras as ring


class Decides(keras.Model):
    """No step of it can be traced."""

    def __init__(self, seed):
        super().__init__()
        keras.utils.set_random_seed(seed)
        self.hidden = keras.layers.Dense(8, activation="tanh")
        self.out = keras.layers.Dense(1, activation="sigmoid")

    def call(self, x, training=False):
        hidden = self.hidden(x)
        if float(tf.reduce_sum(hidden)) > 1e9:
            hidden = -hidden
        return self.out(hidden)


def decides_worker():
    size, rank = ring.size(), ring.rank()
    data = training.dataset(training.steps_of(6, size))
    model, alone = Decides(1 + rank), Decides(1)
    for one in (model, alone):
        training.compile_model(one, keras.optimizers.Adam(0.01), run_eagerly=True)
    training.fit(
        model,
        ring.data.shard(data, remainder="keep"),
        training.BATCH,
        callbacks=[ring.callbacks.BroadcastGlobalVariables()],
    )
    alone(training.arrays()[0][:1])
    training.fit(alone, data, training.BATCH * size)
    return training.largest_difference(model.get_weights(), alone.get_weights())


def test_control_flow_of_python_trains_as_one_process(rank_pool):
    assert max(rank_pool(2).run(decides_worker)) <= 1e-6
