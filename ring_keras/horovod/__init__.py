"""Horovod's names for what ring_keras does.

A script that imports `horovod.tensorflow`, `horovod.tensorflow.keras` or
`horovod.keras` imports `ring_keras.horovod.tensorflow` and so on instead, or is
started with `ringrun --horovod`. The modules here turn Horovod's arguments into
those of ring_keras, with Horovod's meaning. docs/horovod.md says what differs.
"""

from ring_keras.horovod._run import run

__all__ = ["run"]

__version__ = "0.28.1"
"""The release of Horovod whose names these are."""
