"""A linear model in a monitored session, as scripts of TensorFlow 1 have it."""

import horovod.tensorflow as hvd
import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_eager_execution()
hvd.init()

rng = np.random.default_rng(hvd.rank())
inputs = rng.normal(size=(64, 2)).astype("float32")
targets = inputs @ np.array([[2.0], [-1.0]], "float32") + 3.0

tf.set_random_seed(hvd.rank())
x = tf.placeholder(tf.float32, [None, 2])
y = tf.placeholder(tf.float32, [None, 1])
kernel = tf.get_variable("kernel", [2, 1])
bias = tf.get_variable("bias", [1])
loss = tf.reduce_mean((x @ kernel + bias - y) ** 2)
step = tf.train.get_or_create_global_step()
optimizer = hvd.DistributedOptimizer(tf.train.GradientDescentOptimizer(0.1))
train = optimizer.minimize(loss, global_step=step)
gathered = hvd.allgather(tf.concat([tf.reshape(kernel, [-1]), bias], 0)[None])

hooks = [hvd.BroadcastGlobalVariablesHook(0), tf.train.StopAtStepHook(last_step=100)]
with tf.train.MonitoredTrainingSession(hooks=hooks) as session:
    weights = session.run(gathered)
    print("same at first:", bool((weights == weights[0]).all()), flush=True)
    while not session.should_stop():
        fetched = [train, loss, gathered]
        _, value, weights = session.run(fetched, {x: inputs, y: targets})

print("same at last:", bool((weights == weights[0]).all()))
print(f"bias: {weights[0][2]:.2f}, loss: {value:.4f}")
