"""Trains a network of `keras.applications` from scratch.

    ringrun -np 2 python examples/applications.py --network=ResNet50
    ringrun -np 2 python examples/applications.py --network=EfficientNetB0 --synchronize

Both have batch normalization, which in training uses one rank's batch. With
`--synchronize` it uses the batches of all ranks, as in one process. That is better if a
rank's batch is small, and a little slower.

The script makes the images: patches of noise with one brighter quarter, the class.
"""

import zlib

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags

import ring_keras as ring

FLAGS = flags.FLAGS
flags.DEFINE_string("network", "ResNet50", "Name in keras.applications.")
flags.DEFINE_bool("synchronize", False, "Normalize by the batches of all ranks.")
flags.DEFINE_integer("count", 64, "Images.", lower_bound=8)
flags.DEFINE_integer("epochs", 2, "Epochs to train.", lower_bound=1)
flags.DEFINE_integer("batch_size", 8, "Images per step and rank.", lower_bound=2)

SIDE = 32
CLASSES = 4


def make_images(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Images with values up to 255, and their classes."""
    generator = np.random.default_rng(1)
    labels = generator.integers(CLASSES, size=count)
    images = generator.uniform(0, 128, size=(count, SIDE, SIDE, 3))
    half = SIDE // 2
    for image, label in zip(images, labels, strict=True):
        row, column = (half * place for place in divmod(label, 2))
        image[row : row + half, column : column + half] += 127
    return images.astype(np.float32), labels


def main(_: list[str]) -> None:
    """Trains."""
    ring.init()
    keras.utils.set_random_seed(1)

    # With weights="imagenet", have one rank download them before the others do so:
    #     with ring.callbacks.RootOnly() as is_root:
    #         if is_root:
    #             keras.applications.ResNet50(weights="imagenet")
    model = getattr(keras.applications, FLAGS.network)(
        weights=None, input_shape=(SIDE, SIDE, 3), classes=CLASSES
    )
    if FLAGS.synchronize:
        ring.layers.synchronize_batch_normalization(model)
    model.compile(
        ring.DistributedOptimizer(keras.optimizers.Adam(1e-3)),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )

    # One copy of all images for the ranks of a host.
    images, labels = ring.data.shared_array(lambda: make_images(FLAGS.count))
    dataset = tf.data.Dataset.from_tensor_slices((images, labels))
    dataset = ring.data.shard(dataset, seed=1).batch(FLAGS.batch_size)
    history = model.fit(dataset, epochs=FLAGS.epochs).history

    loss, accuracy = ring.evaluate(model, images, labels, verbose=0)
    checksum = zlib.crc32(b"".join(weight.tobytes() for weight in model.get_weights()))
    print(
        f"loss {history['loss'][0]:.4f} to {history['loss'][-1]:.4f}, then {loss:.4f} "
        f"and accuracy {accuracy:.2%}; weights {checksum:08x}"
    )


if __name__ == "__main__":
    app.run(main)
