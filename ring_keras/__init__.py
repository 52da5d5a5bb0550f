"""Synchronous data-parallel training for Keras 3 on TensorFlow.

Names are imported when first used, so that `ring_keras.launch` starts without
TensorFlow. `__init__.pyi` lists them.
"""

import lazy_loader

from ring_keras._version import __version__ as __version__

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
