"""Classifies points by the quadrant they lie in, with Keras and Horovod."""

import sys

import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf

EPOCHS = 6
BATCH_SIZE = 32

hvd.init()

# One GPU per process, if there are any.
gpus = tf.config.list_physical_devices("GPU")
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)
if gpus:
    tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")

points = np.random.default_rng(0).uniform(-1, 1, size=(4096, 2)).astype("float32")
quadrants = (points[:, 0] > 0).astype("int64") + 2 * (points[:, 1] > 0)
dataset = (
    tf.data.Dataset.from_tensor_slices((points, quadrants))
    .shard(hvd.size(), hvd.rank())
    .repeat()
    .shuffle(1000, seed=hvd.rank())
    .batch(BATCH_SIZE)
)

tf.keras.utils.set_random_seed(hvd.rank())
model = tf.keras.Sequential(
    [
        tf.keras.layers.Dense(32, activation="relu", input_shape=(2,)),
        tf.keras.layers.Dense(4, activation="softmax"),
    ]
)

# The rate for the whole job; it is reached gradually.
learning_rate = 0.005 * hvd.size()
optimizer = hvd.DistributedOptimizer(
    tf.keras.optimizers.Adam(learning_rate),
    compression=hvd.Compression.fp16,
    backward_passes_per_step=1,
    average_aggregated_gradients=True,
)
model.compile(
    optimizer=optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"]
)

callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateWarmupCallback(
        initial_lr=learning_rate, warmup_epochs=3, verbose=1
    ),
    hvd.callbacks.LearningRateScheduleCallback(
        initial_lr=learning_rate, multiplier=0.1, start_epoch=5
    ),
]
if hvd.rank() == 0:
    callbacks.append(tf.keras.callbacks.ModelCheckpoint(sys.argv[1]))

history = model.fit(
    dataset,
    steps_per_epoch=120 // hvd.size(),
    epochs=EPOCHS,
    callbacks=callbacks,
    verbose=2 if hvd.rank() == 0 else 0,
).history

weights = hvd.allgather(np.concatenate([w.ravel() for w in model.get_weights()])[None])
same = bool((weights.numpy() == weights.numpy()[0]).all())
# Keras 3 logs the rate by its whole name.
logged = history["lr" if "lr" in history else "learning_rate"]
rates = [round(float(rate), 6) for rate in logged]
if hvd.rank() == 0:
    print("same weights:", same)
    print("rates:", rates[0] < learning_rate, rates[3] == learning_rate, rates[-1])
    print(f"accuracy: {history['accuracy'][-1]:.3f}")
