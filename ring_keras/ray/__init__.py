"""Jobs whose ranks are the workers of Ray Train; see docs/engines.md.

Needs `pip install ring-keras[ray]`. Names are imported when first used, so that a
worker learns which rank it is before it has TensorFlow. `__init__.pyi` lists them.
"""

import importlib

import lazy_loader

try:
    importlib.import_module("ray.train.v2.api.data_parallel_trainer")
except ImportError as error:
    raise ImportError(
        "[RK710] "
        "ring_keras.ray needs Ray Train, 2.60 or newer: pip install 'ring-keras[ray]'"
    ) from error

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
