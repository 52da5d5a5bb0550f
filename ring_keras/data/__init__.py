"""Each rank's part of the data."""

from ring_keras.data.shard import shard

__all__ = ["shard"]
