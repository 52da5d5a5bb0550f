"""Continues in the middle of an epoch after it was killed.

    ringrun -np 2 python examples/resume.py --directory=backup --die_after=70
    ringrun -np 2 python examples/resume.py --directory=backup

The first command ends with an error after 70 steps, like a power cut. The second begins
with the step after the last saved one, on the examples that would have come next. It
ends with the weights of an uninterrupted run.
"""

import hashlib
import os

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags
from sklearn.datasets import load_digits

import ring_keras as ring

FLAGS = flags.FLAGS
flags.DEFINE_string("directory", None, "Where rank 0 saves.", required=True)
flags.DEFINE_integer("die_after", 0, "Steps after which all ranks die; 0: none.")
flags.DEFINE_integer("save_every", 20, "Steps between two saves.", lower_bound=1)
flags.DEFINE_integer("epochs", 4, "Epochs to train, in all.", lower_bound=1)
flags.DEFINE_integer("batch_size", 32, "Examples per step and rank.", lower_bound=1)


class Die(keras.callbacks.Callback):
    """Ends the process before it has left the job."""

    def on_train_batch_end(self, batch, logs=None):
        """Counts the steps of all epochs."""
        if int(self.model.optimizer.iterations) == FLAGS.die_after:
            os._exit(1)


class FirstStep(keras.callbacks.Callback):
    """Notes the number of the first step that is taken."""

    number = 0

    def on_train_batch_end(self, batch, logs=None):
        """Steps that are skipped have no logs."""
        if logs and not self.number:
            self.number = int(self.model.optimizer.iterations)


def build_model() -> keras.Model:
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(
        ring.DistributedOptimizer(keras.optimizers.Adam(2e-3)),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


def main(_: list[str]) -> None:
    """Trains on all ranks, from where training is."""
    ring.init()
    keras.utils.set_random_seed(1)
    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype(np.float32)
    digits = tf.data.Dataset.from_tensor_slices((images, labels))

    # With it, the order of an epoch depends on the epoch's number alone.
    resume = ring.data.Resume()
    train = ring.data.shard(digits, seed=1, resume=resume).batch(FLAGS.batch_size)
    model = build_model()
    first_step = FirstStep()
    history = model.fit(
        train,
        epochs=FLAGS.epochs,
        shuffle=False,
        verbose=2 if ring.rank() == 0 else 0,
        callbacks=[
            # Restores rank 0; Resume and BroadcastGlobalVariables tell the others.
            ring.callbacks.RootOnly(
                keras.callbacks.BackupAndRestore(
                    FLAGS.directory, save_freq=FLAGS.save_every
                )
            ),
            resume,
            ring.callbacks.BroadcastGlobalVariables(),
            ring.callbacks.MetricAverage(),
            first_step,
            *([Die()] if FLAGS.die_after else []),
        ],
    ).history

    digest = hashlib.sha256()
    for weight in model.get_weights():
        digest.update(weight.tobytes())
    print(
        f"began with step {first_step.number}, ended with step "
        f"{int(model.optimizer.iterations)}: accuracy {history['accuracy'][-1]:.2%}, "
        f"weights {digest.hexdigest()[:16]}"
    )


if __name__ == "__main__":
    app.run(main)
