"""A custom training loop with `tf.GradientTape`, on several ranks.

    ringrun -np 2 python examples/custom_loop.py

Trains a small network on handwritten digits. The places that differ from a loop for
one process are marked 1 to 7.
"""

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags
from sklearn.datasets import load_digits

import ring_keras as ring  # 1

FLAGS = flags.FLAGS
flags.DEFINE_integer("epochs", 30, "Epochs to train.", lower_bound=1)
flags.DEFINE_integer("batch_size", 32, "Examples per step and rank.", lower_bound=1)
flags.DEFINE_float("learning_rate", 2e-3, "Learning rate.")

TEST_COUNT = 360


def main(_: list[str]) -> None:
    """Trains on all ranks."""
    ring.init()  # 2: the ranks find each other
    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype(np.float32)
    train = tf.data.Dataset.from_tensor_slices(
        (images[TEST_COUNT:], labels[TEST_COUNT:])
    )
    train = ring.data.shard(train, seed=1).batch(  # 3: each rank its own part
        FLAGS.batch_size, drop_remainder=True
    )

    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    optimizer = keras.optimizers.Adam(FLAGS.learning_rate)
    optimizer.build(model.trainable_variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    # 4: the ranks start from the same weights
    ring.broadcast_variables([*model.weights, *optimizer.variables], root_rank=0)

    @tf.function
    def train_step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        # 5: the gradients are those of all ranks' batches together
        with ring.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = loss_of(y, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    for epoch in range(FLAGS.epochs):
        loss = tf.reduce_mean([train_step(x, y) for x, y in train])
        loss = ring.allreduce(loss, name="loss")  # 6: of all ranks' batches
        if ring.rank() == 0:  # 7: one rank prints
            print(f"epoch {epoch + 1}/{FLAGS.epochs}: loss {float(loss):.4f}")

    if ring.rank() == 0:  # 7
        predicted = tf.argmax(model(images[:TEST_COUNT]), axis=1).numpy()
        accuracy = np.mean(predicted == labels[:TEST_COUNT])
        print(f"test accuracy {accuracy:.2%} on {ring.size()} rank(s)")


if __name__ == "__main__":
    app.run(main)
