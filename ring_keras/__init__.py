"""Synchronous data-parallel training for Keras 3 on TensorFlow.

Names are imported when first used, so that `ring_keras.launch` starts without
TensorFlow. `__init__.pyi` lists them.
"""

import sys

import lazy_loader

from ring_keras import _libraries
from ring_keras._version import __version__ as __version__

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

if "tensorflow" in sys.modules:
    # A misfit is told at once; where TensorFlow comes later, at the first use.
    _libraries.ops()
