"""Keras callbacks for training on several ranks, one per file.

Names are imported when first used, so a `fit` loads what it has. `__init__.pyi` lists
them.
"""

from typing import Any

import lazy_loader

from ring_keras._requirements import (
    has_own,
    needs_tensorflow,
    require_tensorflow,
    stand_in,
)

_HAS_OTHERS = has_own("DistributedOptimizer")
if not _HAS_OTHERS:
    require_tensorflow("ring_keras.callbacks")

# Of those that only TensorFlow has: what others have in their place.
_INSTEAD = {
    "Checkpoint": "Use keras.callbacks.BackupAndRestore, whose files the first rank "
    "writes for all.",
    "Elastic": "Use keras.callbacks.BackupAndRestore, and start the job again.",
    "Preemption": "Use keras.callbacks.BackupAndRestore(save_freq=...), and start the "
    "job again.",
    "RingMetrics": "ring_keras.stats() has the figures.",
    "TensorBoard": "Use keras.callbacks.TensorBoard, and ringrun --metrics-port for "
    "the ranks' figures.",
}

_first, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    if name in _INSTEAD and needs_tensorflow():
        return stand_in(f"{__name__}.{name}", _INSTEAD[name])
    return _first(name)
