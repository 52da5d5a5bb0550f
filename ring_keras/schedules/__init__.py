"""Learning rate schedules for training on several ranks."""

from ring_keras.schedules.warmup import Warmup

__all__ = ["Warmup"]
