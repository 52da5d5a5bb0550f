"""Looks for a good learning rate and width with KerasTuner; trials train on all ranks.

    pip install keras-tuner
    ringrun -np 2 python examples/keras_tuner_search.py

Every rank runs the search, in its own directory. The tuner decides by the metrics of
all ranks, which are the same on each rank, so all ranks try the same parameters.
"""

import tempfile

import keras
import keras_tuner
import numpy as np
import tensorflow as tf
from absl import app, flags
from sklearn.datasets import load_digits

import ring_keras as ring

FLAGS = flags.FLAGS
flags.DEFINE_integer("trials", 4, "Trials.", lower_bound=1)
flags.DEFINE_integer("epochs", 5, "Epochs of a trial.", lower_bound=1)


def build(parameters: keras_tuner.HyperParameters) -> keras.Model:
    """A model as KerasTuner wants it."""
    units = parameters.Int("units", 8, 128, sampling="log")
    rate = parameters.Float("rate", 1e-4, 1e-1, sampling="log")
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(units, activation="silu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(
        ring.DistributedOptimizer(keras.optimizers.Adam(rate)),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


def main(_: list[str]) -> None:
    """Searches."""
    ring.init()
    keras.utils.set_random_seed(1)
    images, labels = load_digits(return_X_y=True)
    data = tf.data.Dataset.from_tensor_slices(
        ((images / 16.0).astype(np.float32), labels)
    )
    with tempfile.TemporaryDirectory() as directory:
        tuner = keras_tuner.RandomSearch(
            build,
            objective=keras_tuner.Objective("val_accuracy", "max"),
            max_trials=FLAGS.trials,
            seed=1,
            directory=directory,
            project_name="digits",
        )
        tuner.search(
            ring.data.shard(data.skip(360), seed=1).batch(32),
            validation_data=ring.data.shard(data.take(360), remainder="keep").batch(
                360
            ),
            epochs=FLAGS.epochs,
            shuffle=False,  # The dataset does that itself.
            verbose=0,
            callbacks=[
                ring.callbacks.BroadcastGlobalVariables(root_rank=0),
                ring.callbacks.MetricAverage(),
            ],
        )
        (best,) = tuner.oracle.get_best_trials(1)
    print(f"best: {best.score:.2%} with {best.hyperparameters.values}")


if __name__ == "__main__":
    app.run(main)
