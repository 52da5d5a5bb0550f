"""Fits a line in two dimensions, with a loop of its own and Horovod."""

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

hvd.init()

inputs = np.random.default_rng(1).normal(size=(2048, 3)).astype("float32")
targets = (inputs @ [[1.0], [-2.0], [0.5]] + 3.0).astype("float32")
dataset = (
    tf.data.Dataset.from_tensor_slices((inputs, targets))
    .shard(hvd.size(), hvd.rank())
    .repeat()
    .shuffle(500, seed=hvd.rank())
    .batch(16)
)

tf.keras.utils.set_random_seed(hvd.rank())
model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(3,))])
optimizer = tf.keras.optimizers.SGD(0.05 * hvd.size(), momentum=0.5)
loss_of = tf.keras.losses.MeanSquaredError()


@tf.function
def training_step(x, y, first_batch):
    with tf.GradientTape() as tape:
        loss = loss_of(y, model(x, training=True))
    tape = hvd.DistributedGradientTape(tape, sparse_as_dense=True)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    # After the first step, when the optimizer has its variables.
    if first_batch:
        hvd.broadcast_variables(model.variables, root_rank=0)
        hvd.broadcast_variables(optimizer.variables, root_rank=0)
    return loss


for batch, (x, y) in enumerate(dataset.take(200 // hvd.size())):
    loss = training_step(x, y, batch == 0)

total = hvd.allreduce(loss, op=hvd.Sum, name="loss")
mean = hvd.allreduce(loss, average=True)
states = hvd.allgather_object([w.tolist() for w in model.get_weights()])
bias = hvd.broadcast_object(float(model.get_weights()[1][0]), root_rank=0)
if hvd.rank() == 0:
    print("same weights:", all(state == states[0] for state in states))
    print("sum over mean:", round(float(total / mean), 3) == hvd.size())
    print(f"bias: {bias:.2f}, loss: {float(mean):.4f}")
