"""Layers, and what is done with layers, on several ranks."""

from ring_keras._requirements import has_own, require_tensorflow

if not has_own("layers.RanksMoments"):
    require_tensorflow("ring_keras.layers")

from ring_keras.layers.moving_statistics import average_moving_statistics
from ring_keras.layers.sync_batch_normalization import (
    SyncBatchNormalization,
    synchronize_batch_normalization,
)

__all__ = [
    "SyncBatchNormalization",
    "average_moving_statistics",
    "synchronize_batch_normalization",
]
