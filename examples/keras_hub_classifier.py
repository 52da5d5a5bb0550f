"""Trains a BERT classifier of KerasHub, on all ranks.

    pip install keras-hub
    ringrun -np 2 python examples/keras_hub_classifier.py

The script builds a small network from a configuration, and downloads nothing. With
`BertTextClassifier.from_preset(...)` the other lines do not change, but let one rank
download the preset first: `with ring.callbacks.RootOnly() as is_root:`, and in it
`if is_root:`.

A sentence has class 1 if the word 1 occurs in it more often than the word 2.
"""

import zlib

import keras
import keras_hub
import numpy as np
import tensorflow as tf
from absl import app, flags

import ring_keras as ring

FLAGS = flags.FLAGS
flags.DEFINE_integer("epochs", 3, "Epochs to train.", lower_bound=1)
flags.DEFINE_integer("batch_size", 16, "Sentences per step and rank.", lower_bound=1)

VOCABULARY = 50
LENGTH = 12
COUNT = 1024


def make_sentences() -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Numbers of words as a preprocessor of KerasHub gives them, and classes."""
    generator = np.random.default_rng(1)
    words = generator.integers(1, VOCABULARY, size=(COUNT, LENGTH))
    labels = generator.integers(2, size=COUNT)
    for sentence, label in zip(words, labels, strict=True):
        sentence[generator.integers(1, LENGTH, size=4)] = 2 - label
    sentences = {
        "token_ids": words.astype(np.int32),
        "segment_ids": np.zeros_like(words, np.int32),
        "padding_mask": np.ones_like(words, np.int32),
    }
    return sentences, labels


def main(_: list[str]) -> None:
    """Trains."""
    ring.init()
    keras.utils.set_random_seed(1)
    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=VOCABULARY,
        num_layers=2,
        num_heads=2,
        hidden_dim=32,
        intermediate_dim=64,
        max_sequence_length=LENGTH,
        dropout=0.0,
    )
    model = keras_hub.models.BertTextClassifier(
        backbone=backbone,
        num_classes=2,
        preprocessor=None,  # The sentences are numbers of words already.
        dropout=0.0,
    )
    model.compile(
        ring.DistributedOptimizer(keras.optimizers.Adam(3e-3)),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=False,
    )

    sentences, labels = make_sentences()
    dataset = tf.data.Dataset.from_tensor_slices((sentences, labels))
    dataset = ring.data.shard(dataset, seed=1).batch(FLAGS.batch_size)
    model.fit(dataset, epochs=FLAGS.epochs)

    _, accuracy = ring.evaluate(model, sentences, labels, verbose=0)
    checksum = zlib.crc32(b"".join(weight.tobytes() for weight in model.get_weights()))
    print(f"accuracy {accuracy:.2%}; weights {checksum:08x}")


if __name__ == "__main__":
    app.run(main)
