"""Fits a line with Keras 2 and Horovod, without eager execution."""

import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf

tf.compat.v1.disable_eager_execution()
hvd.init()
rank, size = hvd.rank(), hvd.size()
inputs = np.random.default_rng(1).normal(size=(16, 3)).astype("float32")
targets = inputs.sum(1, keepdims=True) + 1


def train(seed, optimizer, part, batch_size, callbacks):
    tf.keras.utils.set_random_seed(seed)
    layers = [tf.keras.layers.Dense(4, "tanh"), tf.keras.layers.Dense(1)]
    model = tf.keras.Sequential([tf.keras.Input((3,)), *layers])
    model.compile(optimizer, "mse")
    options = {"shuffle": False, "verbose": 0, "epochs": 3, "callbacks": callbacks}
    history = model.fit(inputs[part], targets[part], batch_size, **options).history
    return model.get_weights(), history


def sgd(rate):
    return tf.keras.optimizers.legacy.SGD(rate, momentum=0.5)


part = slice(rank, None, size)
alone, expected = train(0, sgd(0.1), slice(None), 4 * size, [])
broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
average = hvd.callbacks.MetricAverageCallback()
together, got = train(
    rank, hvd.DistributedOptimizer(sgd(0.1)), part, 4, [broadcast, average]
)
same = [np.allclose(a, b, atol=1e-5) for a, b in zip(alone, together, strict=True)]
warmup = hvd.callbacks.LearningRateWarmupCallback(0.1 * size, warmup_epochs=1)
_, warmed = train(rank, hvd.DistributedOptimizer(sgd(0.1)), part, 4, [warmup])
if rank == 0:
    print("as one process:", all(same), np.allclose(expected["loss"], got["loss"]))
    print("rates:", [round(float(rate), 6) for rate in warmed["lr"][1:]])
