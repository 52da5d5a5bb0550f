"""Trains on whichever back end Keras has: TensorFlow, torch or JAX.

    ringrun -np 2 python examples/any_back_end.py
    KERAS_BACKEND=torch ringrun -np 2 python examples/any_back_end.py
    KERAS_BACKEND=jax ringrun -np 2 python examples/any_back_end.py

Nothing in it names a framework; the callbacks are the same on all of them. The digits
are 1,797 scans that scikit-learn ships.
"""

import keras
from absl import app, flags
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import ring_keras as ring

FLAGS = flags.FLAGS
flags.DEFINE_integer("epochs", 15, "Epochs to train.", lower_bound=1)
flags.DEFINE_integer("batch_size", 32, "Examples per step and rank.", lower_bound=1)
flags.DEFINE_float("learning_rate", 0.001, "That of one rank.", lower_bound=0.0)


def main(_: list[str]) -> None:
    """Trains on this rank's part, and says what all ranks report."""
    ring.init()
    images, labels = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(
        images.astype("float32") / 16, labels, test_size=360, random_state=0
    )
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(
        ring.DistributedOptimizer(keras.optimizers.Adam(FLAGS.learning_rate)),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    history = model.fit(
        *ring.data.shard((x_train, y_train), seed=1),
        validation_data=ring.data.shard((x_test, y_test)),
        batch_size=FLAGS.batch_size,
        epochs=FLAGS.epochs,
        verbose=2,
        callbacks=[
            # From the rate of one rank to that of all of them.
            ring.callbacks.LearningRateWarmup(FLAGS.learning_rate, warmup_epochs=3),
            keras.callbacks.ReduceLROnPlateau(patience=3),
        ],
    ).history
    print(
        f"rank {ring.rank()} of {ring.size()} on {keras.backend.backend()}: "
        f"test accuracy {history['val_accuracy'][-1]:.3f}"
    )


if __name__ == "__main__":
    app.run(main)
