"""A `fit` that continues when ranks are lost or join.

    ringrun -np 3 --min-np 1 --max-np 3 -v python examples/elastic_digits.py

Kill any rank, by the pid that it prints, and watch: the others continue in the middle
of the epoch, and a replacement starts. The digits are 1,797 scans that scikit-learn
ships.
"""

import os
import time

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import ring_keras as ring

FLAGS = flags.FLAGS
flags.DEFINE_integer("epochs", 8, "Epochs to train.", lower_bound=1)
flags.DEFINE_integer("batch_size", 16, "Examples per step and rank.", lower_bound=1)
flags.DEFINE_float("pause", 0.1, "Seconds between steps, to kill ranks in.")


class Shows(keras.callbacks.Callback):
    """Says who takes part in each epoch, and takes its time."""

    def on_epoch_begin(self, epoch, logs=None):
        """Says who this is."""
        who = f"rank {ring.rank()} of {ring.size()}, pid {os.getpid()}"
        print(f"epoch {epoch}: {who}", flush=True)

    def on_train_batch_end(self, batch, logs=None):
        """Waits."""
        time.sleep(FLAGS.pause)


def main(_: list[str]) -> None:
    """Trains on all ranks."""
    images, labels = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(
        (images / 16.0).astype(np.float32), labels, test_size=357, random_state=0
    )
    ring.init()  # The others wait for one that comes later from here on.
    keras.utils.set_random_seed(1)
    train = tf.data.Dataset.from_tensor_slices((x_train, y_train))
    test = tf.data.Dataset.from_tensor_slices((x_test, y_test))
    train = ring.data.shard(train, seed=1).batch(FLAGS.batch_size)
    test = ring.data.shard(test, remainder="keep").batch(357)

    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dropout(0.1),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    optimizer = ring.DistributedOptimizer(keras.optimizers.Adam(0.003))
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    history = model.fit(
        train,
        validation_data=test,
        epochs=FLAGS.epochs,
        shuffle=False,  # The dataset does that itself.
        verbose=0,
        callbacks=[
            ring.callbacks.Elastic(),
            ring.callbacks.MetricAverage(),
            Shows(),
        ],
    ).history
    accuracy = history["val_accuracy"][-1]
    print(f"test accuracy {accuracy:.2%} after {len(history['loss'])} epochs")


if __name__ == "__main__":
    app.run(main)
