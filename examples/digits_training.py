"""The training of the examples for Ray, Spark and Dask: the digits of scikit-learn.

    ringrun -np 2 python examples/digits_training.py

trains the same model without these engines, to the same weights.
"""

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import ring_keras as ring

FLAGS = flags.FLAGS
flags.DEFINE_integer("epochs", 15, "Epochs to train.", lower_bound=1)
flags.DEFINE_string("output", "digits.keras", "Where rank 0 saves the model.")


def load() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Images and labels, for training and for test."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype(np.float32)
    x_train, x_test, y_train, y_test = train_test_split(
        images, labels, test_size=360, random_state=0, stratify=labels
    )
    return (x_train, y_train), (x_test, y_test)


def train(
    epochs: int, output: str | None = None, learning_rate: float = 5e-3
) -> tuple[float, list[np.ndarray]]:
    """As one rank of a job.

    Args:
        epochs: How many.
        output: Where rank 0 saves the model, if not None.
        learning_rate: Of Adam.

    Returns:
        The accuracy on the digits for test, and the weights.
    """
    ring.init()
    keras.utils.set_random_seed(1)
    train_data, test_data = map(tf.data.Dataset.from_tensor_slices, load())
    train_data = ring.data.shard(train_data, seed=1).batch(32)
    test_data = ring.data.shard(test_data, remainder="keep").batch(360)
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(128, activation="silu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(
        ring.DistributedOptimizer(keras.optimizers.Adam(learning_rate)),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    history = model.fit(
        train_data,
        validation_data=test_data,
        epochs=epochs,
        shuffle=False,  # The dataset does that itself.
        verbose=0,
        callbacks=[
            ring.callbacks.BroadcastGlobalVariables(root_rank=0),
            ring.callbacks.MetricAverage(),
        ],
    ).history
    if output is not None and ring.rank() == 0:
        model.save(output)
    return history["val_accuracy"][-1], model.get_weights()


def main(_: list[str]) -> None:
    """Trains as a rank of `ringrun`."""
    accuracy, _ = train(FLAGS.epochs, FLAGS.output)
    if ring.rank() == 0:
        print(f"test accuracy {accuracy:.2%} on {ring.size()} rank(s)")


if __name__ == "__main__":
    app.run(main)
