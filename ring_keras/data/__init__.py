"""Each rank's part of the data."""

from ring_keras.data.shard import shard
from ring_keras.data.tensorflow_io import tensorflow_io

__all__ = ["shard", "tensorflow_io"]
