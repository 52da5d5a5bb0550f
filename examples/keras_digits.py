"""Trains a small convolutional network on handwritten digits.

    ringrun -np 2 python examples/keras_digits.py

The lines that make an ordinary Keras script train on several ranks are marked 1
to 7. Without a launcher the same script trains on one rank. The digits are 1,797
scans that scikit-learn ships. Afterwards rank 0 trains once more, alone, on the
batches that all ranks had together, and compares.
"""

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import ring_keras as ring  # 1

FLAGS = flags.FLAGS
flags.DEFINE_integer("epochs", 10, "Epochs to train.", lower_bound=1)
flags.DEFINE_integer("batch_size", 32, "Examples per step and rank.", lower_bound=1)
flags.DEFINE_float("learning_rate", 0.02, "Learning rate for one rank.")
flags.DEFINE_integer("warmup_steps", 40, "Steps to the full rate.", lower_bound=1)
flags.DEFINE_integer("seed", 1, "Seed of the initial weights and the data's order.")
flags.DEFINE_string("output", "digits.keras", "Where rank 0 saves the model.")
flags.DEFINE_bool("compare", True, "Whether to train once more in one process.")


def load() -> tuple[tf.data.Dataset, tf.data.Dataset]:
    """The digits, as datasets of (image, label) for training and test."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype(np.float32).reshape(-1, 8, 8, 1)
    x_train, x_test, y_train, y_test = train_test_split(
        images, labels, test_size=360, random_state=0, stratify=labels
    )
    # Every training digit once more, moved by one pixel, in each direction.
    padded = np.pad(x_train, ((0, 0), (1, 1), (1, 1), (0, 0)))
    corners = [(1, 1), (0, 1), (2, 1), (1, 0), (1, 2)]
    x_train = np.concatenate([padded[:, i : i + 8, j : j + 8] for i, j in corners])
    train = tf.data.Dataset.from_tensor_slices(
        (x_train, np.tile(y_train, len(corners)))
    )
    return (
        # In the one order that the comparison needs. ring.data.shard(train, seed=1)
        # shuffles anew in each epoch.
        train.shuffle(len(x_train), seed=FLAGS.seed, reshuffle_each_iteration=False),
        tf.data.Dataset.from_tensor_slices((x_test, y_test)),
    )


def build_model() -> keras.Model:
    """About 43,000 weights; smooth, so that rounding does not grow."""
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


def compile_model(model: keras.Model, optimizer: keras.optimizers.Optimizer) -> None:
    """The same for training on all ranks and in one process."""
    model.compile(
        optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"]
    )


class SameRate(keras.callbacks.Callback):
    """Gives one process the learning rate that the ranks had."""

    def __init__(self, warmup: ring.callbacks.LearningRateWarmup) -> None:
        super().__init__()
        self.warmup = warmup

    def on_train_batch_begin(self, batch, logs=None):
        """Sets the rate of the step to come."""
        rate = self.warmup.learning_rate_at(int(self.model.optimizer.iterations))
        if rate is not None:
            self.model.optimizer.learning_rate = rate


def train_in_one_process(
    initial_weights: list[np.ndarray], warmup: ring.callbacks.LearningRateWarmup
) -> tuple[float, list[float]]:
    """The same training on the global batches: test accuracy, losses by epoch."""
    train, test = load()
    count = int(train.cardinality())
    train = train.take(count - count % ring.size())
    model = build_model()
    model.set_weights(initial_weights)
    compile_model(model, keras.optimizers.SGD(FLAGS.learning_rate, momentum=0.9))
    history = model.fit(
        train.batch(FLAGS.batch_size * ring.size()),
        epochs=FLAGS.epochs,
        shuffle=False,
        verbose=0,
        callbacks=[SameRate(warmup)],
    ).history
    result = model.evaluate(test.batch(360), verbose=0, return_dict=True)
    return result["accuracy"], history["loss"]


def main(_: list[str]) -> None:
    """Trains on all ranks."""
    ring.init()  # 2: the ranks find each other
    keras.utils.set_random_seed(FLAGS.seed)
    train, test = load()
    train = ring.data.shard(train)  # 3: each rank its own part
    test = ring.data.shard(test, remainder="keep")  # 4

    model = build_model()
    initial_weights = model.get_weights()
    optimizer = keras.optimizers.SGD(FLAGS.learning_rate, momentum=0.9)
    compile_model(model, ring.DistributedOptimizer(optimizer))  # 5: one gradient
    warmup = ring.callbacks.LearningRateWarmup(
        FLAGS.learning_rate, FLAGS.warmup_steps, momentum_correction=False
    )
    history = model.fit(
        train.batch(FLAGS.batch_size),
        validation_data=test.batch(360),
        epochs=FLAGS.epochs,
        shuffle=False,  # The dataset does that itself.
        callbacks=[warmup],  # A larger batch takes a larger rate.
    ).history

    if ring.rank() != 0:  # 6: one rank saves and prints
        return  # 7
    model.save(FLAGS.output)
    accuracy = history["val_accuracy"][-1]
    print(f"{FLAGS.output}: test accuracy {accuracy:.2%} on {ring.size()} rank(s)")
    if FLAGS.compare and ring.size() > 1:
        alone_accuracy, alone_loss = train_in_one_process(initial_weights, warmup)
        first, last = np.abs(np.subtract(history["loss"], alone_loss))[[0, -1]]
        print(
            f"comparison: test accuracy {accuracy:.2%} on {ring.size()} ranks, "
            f"{alone_accuracy:.2%} in one process with the same global batch; "
            f"training loss differs by {first:.1e} in the first epoch and "
            f"{last:.1e} in the last"
        )


if __name__ == "__main__":
    app.run(main)
