"""Trains a model of Keras 2, the package `tf_keras`, on handwritten digits.

    pip install tf_keras
    ringrun -np 2 python examples/tf_keras_digits.py

`ring_keras` itself is for Keras 3. Code that needs Keras 2 can use Horovod's names,
which take its optimizers and models. Metrics are then the mean of the ranks' logged
values; docs/horovod.md lists the other differences.
"""

import os
import zlib

# Before TensorFlow is imported: it makes `tf.keras` Keras 2.
os.environ["TF_USE_LEGACY_KERAS"] = "1"

import numpy as np
import tensorflow as tf
from absl import app, flags
from sklearn.datasets import load_digits

import ring_keras.horovod.tensorflow.keras as hvd

FLAGS = flags.FLAGS
flags.DEFINE_integer("epochs", 8, "Epochs to train.", lower_bound=1)
flags.DEFINE_integer("batch_size", 16, "Images per step and rank.", lower_bound=1)

TEST_COUNT = 300


def main(_: list[str]) -> None:
    """Trains."""
    hvd.init()
    tf.keras.utils.set_random_seed(1)
    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype(np.float32)

    model = tf.keras.Sequential(
        [
            tf.keras.layers.Dense(64, activation="relu", input_shape=(64,)),
            tf.keras.layers.Dense(10, activation="softmax"),
        ]
    )
    optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.Adam(2e-3))
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])

    # Every rank has as many images: they end an epoch together.
    train = images[TEST_COUNT:], labels[TEST_COUNT:]
    count = len(train[0]) // hvd.size() * hvd.size()
    part = slice(hvd.rank(), count, hvd.size())
    model.fit(
        train[0][part],
        train[1][part],
        batch_size=FLAGS.batch_size,
        epochs=FLAGS.epochs,
        callbacks=[
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback(),
        ],
        verbose=2 if hvd.rank() == 0 else 0,
    )

    _, accuracy = model.evaluate(images[:TEST_COUNT], labels[:TEST_COUNT], verbose=0)
    checksum = zlib.crc32(b"".join(weight.tobytes() for weight in model.get_weights()))
    print(f"test accuracy {accuracy:.2%}; weights {checksum:08x}")


if __name__ == "__main__":
    app.run(main)
