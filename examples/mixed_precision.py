"""Trains a convolutional network in 16 bits, at a rate that warms up.

    ringrun -np 2 python examples/mixed_precision.py

On n ranks the global batch is n times as large, so the learning rate grows, too: from
the rate for one rank to n times that rate. Under `mixed_float16` Keras scales the loss
so that small gradients do not vanish. If one rank's gradients overflow, all ranks skip
the step and lower the scale.
"""

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags
from sklearn.datasets import load_digits

import ring_keras as ring

FLAGS = flags.FLAGS
flags.DEFINE_integer("epochs", 6, "Epochs to train.", lower_bound=1)
flags.DEFINE_integer("batch_size", 32, "Examples per step and rank.", lower_bound=1)
flags.DEFINE_integer("warmup_epochs", 2, "Epochs to the full rate.", lower_bound=1)
flags.DEFINE_float("learning_rate", 0.02, "Learning rate for one rank.")
flags.DEFINE_enum(
    "policy",
    "mixed_float16",
    ["mixed_float16", "mixed_bfloat16"],
    "Types of numbers.",
)

TEST_COUNT = 360


def load() -> tuple[tf.data.Dataset, tf.data.Dataset]:
    """The digits, as datasets of (image, label) for training and test."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype(np.float32).reshape(-1, 8, 8, 1)
    digits = tf.data.Dataset.from_tensor_slices((images, labels))
    return digits.skip(TEST_COUNT), digits.take(TEST_COUNT)


def build_model() -> keras.Model:
    """Computes in 16 bits, and its probabilities in 32."""
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10, activation="softmax", dtype="float32"),
        ]
    )


def main(_: list[str]) -> None:
    """Trains on all ranks."""
    ring.init()
    keras.utils.set_random_seed(1)
    keras.mixed_precision.set_dtype_policy(FLAGS.policy)
    train, test = load()
    train = ring.data.shard(train, seed=1).batch(FLAGS.batch_size)
    test = ring.data.shard(test, remainder="keep").batch(TEST_COUNT)

    model = build_model()
    optimizer = keras.optimizers.SGD(FLAGS.learning_rate, momentum=0.9)
    # compile() puts a LossScaleOptimizer around it, if it computes in float16.
    model.compile(
        ring.DistributedOptimizer(optimizer),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    history = model.fit(
        train,
        validation_data=test,
        epochs=FLAGS.epochs,
        shuffle=False,
        verbose=1 if ring.rank() == 0 else 0,
        callbacks=[
            ring.callbacks.BroadcastGlobalVariables(),
            ring.callbacks.MetricAverage(),
            ring.callbacks.LearningRateWarmup(
                FLAGS.learning_rate, warmup_epochs=FLAGS.warmup_epochs
            ),
        ],
    ).history

    scale = getattr(model.optimizer, "dynamic_scale", 1.0)
    print(
        f"test accuracy {history['val_accuracy'][-1]:.2%}, learning rate "
        f"{float(optimizer.learning_rate):.4f}, loss scale {float(scale):g}, "
        f"kernels in {model.layers[0].compute_dtype}"
    )


if __name__ == "__main__":
    app.run(main)
