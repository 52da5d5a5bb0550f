"""Trains on files of a web server; each file is read by one rank.

    pip install "tensorflow==2.16.*" "ring-keras[io]"
    ringrun -np 2 python examples/read_over_http.py --urls=http://host/a.csv,...

Without --urls, rank 0 serves handwritten digits on this machine.
A line of a file has the label and the pixels of one image.
"""

import contextlib
import functools
import http.server
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags
from sklearn.datasets import load_digits

import ring_keras as ring

FLAGS = flags.FLAGS
flags.DEFINE_list("urls", [], "Files to read; none: digits, from this machine.")
flags.DEFINE_integer("epochs", 20, "Epochs to train.", lower_bound=1)
flags.DEFINE_integer("batch_size", 32, "Examples per step and rank.", lower_bound=1)

FILE_COUNT = 8
PIXELS = 64


class _QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@contextlib.contextmanager
def served_digits() -> Iterator[list[str]]:
    """The digits in files of one size, and a server that has them."""
    images, labels = load_digits(return_X_y=True)
    rows = np.column_stack([labels, images]).astype(int)
    rows = rows[: len(rows) // FILE_COUNT * FILE_COUNT]
    with tempfile.TemporaryDirectory() as directory:
        for number, part in enumerate(np.split(rows, FILE_COUNT)):
            np.savetxt(Path(directory, f"{number}.csv"), part, "%d", delimiter=",")
        handler = functools.partial(_QuietHandler, directory=directory)
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            origin = f"http://127.0.0.1:{server.server_port}"
            yield [f"{origin}/{number}.csv" for number in range(FILE_COUNT)]
            ring.barrier()  # The others may still read.
            server.shutdown()


def parse(line: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Image and label of a line."""
    values = tf.strings.to_number(tf.strings.split(line, ","), tf.float32)
    values = tf.ensure_shape(values, [1 + PIXELS])
    return values[1:] / 16.0, tf.cast(values[0], tf.int32)


def train(urls: list[str]) -> None:
    """Fits a small network to what the files hold."""
    # The files are split, not their lines: a rank fetches its own ones only.
    files = ring.data.shard(tf.data.Dataset.from_tensor_slices(urls), seed=1)
    dataset = files.interleave(tf.data.TextLineDataset, cycle_length=2)
    dataset = dataset.map(parse).batch(FLAGS.batch_size, drop_remainder=True)

    model = keras.Sequential(
        [
            keras.Input((PIXELS,)),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    model.compile(
        optimizer=ring.DistributedOptimizer("adam"),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    history = model.fit(
        dataset,
        epochs=FLAGS.epochs,
        verbose=0,
        callbacks=[
            ring.callbacks.BroadcastGlobalVariables(root_rank=0),
            ring.callbacks.MetricAverage(),
        ],
    )
    if ring.rank() == 0:
        accuracy = history.history["accuracy"][-1]
        print(f"accuracy {accuracy:.2%} on {ring.size()} rank(s), over http")


def main(_: list[str]) -> None:
    """Trains on all ranks."""
    ring.init()
    ring.data.tensorflow_io()  # From here on tf.data reads http://.
    with contextlib.ExitStack() as stack:
        urls = FLAGS.urls
        if not urls:
            if ring.rank() == 0:
                urls = stack.enter_context(served_digits())
            else:
                stack.callback(ring.barrier)
            urls = ring.broadcast_object(urls, root_rank=0)
        train(urls)


if __name__ == "__main__":
    app.run(main)
