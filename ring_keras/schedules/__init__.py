"""Learning rate schedules for training on several ranks."""

from ring_keras._requirements import has_own, require_tensorflow

if not has_own("DistributedOptimizer"):
    require_tensorflow("ring_keras.schedules")

from ring_keras.schedules.warmup import Warmup

__all__ = ["Warmup"]
