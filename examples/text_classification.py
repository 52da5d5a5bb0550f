"""Classifies sentences with an embedding, whose gradients are sparse.

    ringrun -np 2 python examples/text_classification.py

A batch uses few rows of the embedding, so Keras returns their gradient as
`tf.IndexedSlices`. The ranks gather each other's rows, unless summing the whole table
moves fewer bytes. Both give the same result as one process.

The script makes the sentences: each has some words of its topic among many others. The
ranks divide files, which differ in length. With `join`, a rank without more data
continues with empty batches, so no sentence is left out.
"""

import tempfile
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags

import ring_keras as ring

FLAGS = flags.FLAGS
flags.DEFINE_integer("epochs", 4, "Epochs to train.", lower_bound=1)
flags.DEFINE_integer("batch_size", 16, "Sentences per step and rank.", lower_bound=1)

TOPICS = 4
VOCABULARY = 5000
WORDS_PER_TOPIC = 50
LENGTH = 30
FILES = 8
TEST_COUNT = 400


def make_sentences(count: int, seed: int) -> list[str]:
    """Lines of a topic's number and words."""
    generator = np.random.default_rng(seed)
    lines = []
    for topic in generator.integers(TOPICS, size=count):
        words = generator.integers(VOCABULARY, size=LENGTH)
        own = generator.random(LENGTH) < 0.2
        words[own] = topic * WORDS_PER_TOPIC + words[own] % WORDS_PER_TOPIC
        lines.append(f"{topic}\t" + " ".join(f"word{word}" for word in words))
    return lines


def write_files(directory: Path) -> None:
    """Files of different lengths, as data come in."""
    for number in range(FILES):
        lines = make_sentences(100 + 40 * number, seed=number)
        (directory / f"part-{number}.tsv").write_text("\n".join(lines))


def parse(line: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Words by number, and the topic."""
    topic, text = tf.unstack(tf.strings.split(line, "\t"), 2)
    words = tf.strings.substr(tf.strings.split(text, " "), len("word"), 10)
    words = tf.ensure_shape(tf.strings.to_number(words, tf.int32), [LENGTH])
    return words, tf.strings.to_number(topic, tf.int32)


def build_model() -> keras.Model:
    """Averages the words of a sentence."""
    return keras.Sequential(
        [
            keras.Input((LENGTH,), dtype="int32"),
            keras.layers.Embedding(VOCABULARY, 32),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(TOPICS, activation="softmax"),
        ]
    )


def train(directory: Path) -> None:
    """Trains on this rank's files, together with the others."""
    files = ring.data.shard_files(str(directory / "*.tsv"), seed=1)
    sentences = files.interleave(tf.data.TextLineDataset, cycle_length=2)
    # Rows that only one rank has are shuffled as it likes.
    batches = sentences.shuffle(500).map(parse).batch(FLAGS.batch_size)

    model = build_model()
    model.compile(
        ring.DistributedOptimizer(keras.optimizers.Adam(0.01)),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    callbacks = [
        ring.callbacks.BroadcastGlobalVariables(),
        ring.callbacks.MetricAverage(),
    ]
    model.fit(
        ring.data.join(batches),
        epochs=FLAGS.epochs,
        shuffle=False,
        verbose=2 if ring.rank() == 0 else 0,
        callbacks=callbacks,
    )
    lines = tf.data.Dataset.from_tensor_slices(make_sentences(TEST_COUNT, seed=99))
    test = ring.data.shard(lines, remainder="keep").map(parse).batch(TEST_COUNT)
    _, accuracy = model.evaluate(test, verbose=0, callbacks=callbacks[1:])
    print(f"test accuracy {accuracy:.2%} after {int(model.optimizer.iterations)} steps")


def main(_: list[str]) -> None:
    """Makes the files on rank 0, and trains on all ranks."""
    ring.init()
    with tempfile.TemporaryDirectory() as own_directory:
        directory = Path(ring.broadcast_object(own_directory, root_rank=0))
        if ring.rank() == 0:
            write_files(directory)
        ring.barrier()
        train(directory)
        ring.barrier()  # Nobody reads any more.


if __name__ == "__main__":
    app.run(main)
