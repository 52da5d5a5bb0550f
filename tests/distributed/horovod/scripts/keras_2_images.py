"""Classifies images with Keras 2 and Horovod; only `fit` builds the model."""

import sys

import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf

hvd.init()

gpus = tf.config.experimental.list_physical_devices("GPU")
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)
if gpus:
    tf.config.experimental.set_visible_devices(gpus[hvd.local_rank()], "GPU")

# Each image is brighter in one of its four quarters.
random = np.random.default_rng(hvd.rank())
labels = np.arange(512) % 4
images = random.integers(0, 128, size=(512, 12, 12))
for image, label in zip(images, labels, strict=True):
    row, column = 6 * (label // 2), 6 * (label % 2)
    image[row : row + 6, column : column + 6] += 120

dataset = tf.data.Dataset.from_tensor_slices(
    (
        tf.cast(images[..., tf.newaxis] / 255.0, tf.float32),
        tf.cast(labels, tf.int64),
    )
)
dataset = dataset.repeat().shuffle(512).batch(32)

model = tf.keras.Sequential(
    [
        tf.keras.layers.Conv2D(8, [3, 3], activation="relu"),
        tf.keras.layers.MaxPooling2D(pool_size=(2, 2)),
        tf.keras.layers.Dropout(0.25),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(32, activation="relu"),
        tf.keras.layers.Dropout(0.5),
        tf.keras.layers.Dense(4, activation="softmax"),
    ]
)

scaled_lr = 0.005 * hvd.size()
optimizer = hvd.DistributedOptimizer(
    tf.optimizers.Adam(scaled_lr),
    backward_passes_per_step=1,
    average_aggregated_gradients=True,
)
model.compile(
    loss=tf.losses.SparseCategoricalCrossentropy(),
    optimizer=optimizer,
    metrics=["accuracy"],
    experimental_run_tf_function=False,
)

callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateWarmupCallback(
        initial_lr=scaled_lr, warmup_epochs=3, verbose=1
    ),
]
if hvd.rank() == 0:
    callbacks.append(tf.keras.callbacks.ModelCheckpoint(sys.argv[1]))

history = model.fit(
    dataset,
    steps_per_epoch=60 // hvd.size(),
    callbacks=callbacks,
    epochs=4,
    verbose=2 if hvd.rank() == 0 else 0,
).history

weights = hvd.allgather(np.concatenate([w.ravel() for w in model.get_weights()])[None])
same = bool((weights.numpy() == weights.numpy()[0]).all())
rates = [float(rate) for rate in history["lr"]]
if hvd.rank() == 0:
    print("same weights:", same)
    print("rates:", rates[0] < scaled_lr, np.isclose(rates[-1], scaled_lr))
    print(f"accuracy: {history['accuracy'][-1]:.3f}")
