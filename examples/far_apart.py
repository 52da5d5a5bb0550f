"""Trains ranks between which the network is slow, so that they seldom meet.

    ringrun -np 2 python examples/far_apart.py
    ringrun -np 2 python examples/far_apart.py --wire=int8 --sync_every=20

Each rank takes steps by itself. Every `--sync_every` updates, and at the end of each
epoch, the ranks average how their weights have changed, in as many bits as `--wire`
says. With the averages they all go on.
"""

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags
from sklearn.datasets import load_digits

import ring_keras as ring

FLAGS = flags.FLAGS
flags.DEFINE_integer("epochs", 8, "Epochs to train.", lower_bound=1)
flags.DEFINE_integer("batch_size", 16, "Examples per step and rank.", lower_bound=1)
flags.DEFINE_integer("sync_every", 10, "Updates between meetings.", lower_bound=1)
flags.DEFINE_enum(
    "wire", "float32", ["float32", "bfloat16", "int8", "top-k"], "What travels."
)

TEST_COUNT = 360


def load() -> tuple[tf.data.Dataset, tf.data.Dataset]:
    """The digits, as datasets of (image, label) for training and test."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype(np.float32).reshape(-1, 8, 8, 1)
    digits = tf.data.Dataset.from_tensor_slices((images, labels))
    return digits.skip(TEST_COUNT), digits.take(TEST_COUNT)


def build_model() -> keras.Model:
    """About 43,000 weights."""
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(32, 3, padding="same", activation="silu"),
            keras.layers.Conv2D(32, 3, strides=2, padding="same", activation="silu"),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="silu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )


def main(_: list[str]) -> None:
    """Trains on all ranks."""
    ring.init()
    keras.utils.set_random_seed(1)
    train, test = load()
    train = ring.data.shard(train, seed=1).batch(FLAGS.batch_size)
    test = ring.data.shard(test, remainder="keep").batch(TEST_COUNT)

    model = build_model()
    optimizer = ring.DiLoCo(
        keras.optimizers.AdamW(2e-3),
        # For hundreds of meetings leave this out: the default has a momentum of 0.9.
        keras.optimizers.SGD(0.7, momentum=0.5, nesterov=True),
        sync_every=FLAGS.sync_every,
        wire=FLAGS.wire,
    )
    model.compile(
        optimizer,
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
        steps_per_execution=FLAGS.sync_every,  # So the ranks ask nothing in between.
    )
    history = model.fit(
        train,
        validation_data=test,
        epochs=FLAGS.epochs,
        verbose=2 if ring.rank() == 0 else 0,
    ).history

    steps = int(optimizer.iterations)
    meetings = int(optimizer.outer_optimizer.iterations)
    print(
        f"test accuracy {history['val_accuracy'][-1]:.2%} after {steps} steps and "
        f"{meetings} meetings in {FLAGS.wire}"
    )


if __name__ == "__main__":
    app.run(main)
