"""Keras callbacks for training on several ranks, one per file.

Names are imported when first used, so a `fit` loads what it has. `__init__.pyi` lists
them.
"""

from ring_keras._requirements import require_tensorflow

require_tensorflow(
    "ring_keras.callbacks",
    "Leave them out: fit() with ring_keras.DistributedOptimizer broadcasts, and "
    "averages metrics, by itself.",
)

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
