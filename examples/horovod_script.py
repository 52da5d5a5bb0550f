"""A Horovod script with another import line.

    ringrun -np 2 python examples/horovod_script.py      # was: horovodrun -np 2 ...

It is like the scripts in Horovod's documentation for TensorFlow 2 and Keras. Comments
at changed lines show the old ones. The other lines are those for Horovod, including a
learning rate that is scaled by hand.
"""

import sys

import keras  # was: tensorflow.keras, of Keras 2
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import ring_keras.horovod.tensorflow.keras as hvd  # was: horovod.tensorflow.keras


def main() -> None:
    # Initialize Horovod.
    hvd.init()

    # Pin the GPU to be used by this process.
    gpus = tf.config.experimental.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    if gpus:
        tf.config.experimental.set_visible_devices(gpus[hvd.local_rank()], "GPU")

    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype(np.float32).reshape(-1, 8, 8, 1)
    dataset = tf.data.Dataset.from_tensor_slices((images, labels))
    # Each process shuffles for itself, and draws without end.
    dataset = dataset.repeat().shuffle(1797, seed=hvd.rank()).batch(32)

    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Dropout(0.25),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )

    # Adjust the learning rate to the number of processes.
    scaled_lr = 0.001 * hvd.size()
    opt = keras.optimizers.Adam(scaled_lr)  # was: tf.optimizers.Adam

    # Add the distributed optimizer.
    opt = hvd.DistributedOptimizer(
        opt, backward_passes_per_step=1, average_aggregated_gradients=True
    )

    # was: also experimental_run_tf_function=False, which Keras 3 does not know
    model.compile(
        loss=keras.losses.SparseCategoricalCrossentropy(),
        optimizer=opt,
        metrics=["accuracy"],
    )

    callbacks = [
        # Broadcast the initial variables from rank 0 to all other processes.
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        # Average metrics among workers at the end of every epoch.
        hvd.callbacks.MetricAverageCallback(),
        # Start with a small rate and warm up to the scaled one.
        hvd.callbacks.LearningRateWarmupCallback(
            initial_lr=scaled_lr, warmup_epochs=3, verbose=1
        ),
    ]

    # Save checkpoints only on worker 0 to prevent others from corrupting them.
    if hvd.rank() == 0 and len(sys.argv) > 1:
        # was: checkpoint-{epoch}.h5
        checkpoint = f"{sys.argv[1]}/checkpoint-{{epoch}}.keras"
        callbacks.append(keras.callbacks.ModelCheckpoint(checkpoint))

    # Horovod: write logs on worker 0.
    verbose = 1 if hvd.rank() == 0 else 0

    # Train the model; there are size() times fewer steps in an epoch.
    history = model.fit(
        dataset,
        steps_per_epoch=56 // hvd.size(),
        callbacks=callbacks,
        epochs=6,
        verbose=verbose,
    )
    accuracy = history.history["accuracy"][-1]
    weight_sum = sum(float(np.abs(weight).sum()) for weight in model.get_weights())
    print(f"accuracy {accuracy:.2%}, weights {weight_sum:.6f}")


if __name__ == "__main__":
    main()
