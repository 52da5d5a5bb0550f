"""Takes the place of `horovod.keras.elastic`."""

from ring_keras.horovod.tensorflow.keras import elastic
from ring_keras.horovod.tensorflow.keras.elastic import *  # noqa: F403

__all__ = [*elastic.__all__]
