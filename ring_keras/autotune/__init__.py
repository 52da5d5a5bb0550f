"""Thresholds between algorithms, and the size of buckets, by measuring.

`RING_KERAS_AUTOTUNE=1` makes `init()` do so, on the ranks of the job itself.
Imports no TensorFlow.
"""

from ring_keras.autotune.tune import tune

__all__ = ["tune"]
