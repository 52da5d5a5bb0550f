"""What TensorFlow finds and computes on a GPU, without ring_keras: a first check."""

from __future__ import annotations

import time

import numpy as np
import tensorflow as tf


def main() -> None:
    """Prints how long each took."""
    gpus = tf.config.list_physical_devices("GPU")
    print(tf.__version__, np.__version__, gpus, flush=True)
    assert gpus, "TensorFlow finds no GPU"
    print(tf.sysconfig.get_build_info(), flush=True)

    def product(a: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(tf.matmul(a, a))

    def convolution(a: tf.Tensor) -> tf.Tensor:
        images = tf.reshape(a, (1, 1024, 1024, 1))
        return tf.reduce_sum(tf.nn.conv2d(images, tf.ones((3, 3, 1, 8)), 1, "SAME"))

    value = tf.random.normal((1024, 1024))
    for function in (product, convolution):
        for kind, run in {
            "eager": function,
            "graph": tf.function(function),
            "XLA": tf.function(function, jit_compile=True),
        }.items():
            start = time.perf_counter()
            try:
                result = float(run(value))
            except Exception as error:  # The other kinds are worth knowing, too.
                result = f"{type(error).__name__}: {str(error)[:300]}"
            took = time.perf_counter() - start
            print(f"{function.__name__} {kind}: {result} {took:.2f} s", flush=True)


if __name__ == "__main__":
    main()
