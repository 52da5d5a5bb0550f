"""Synchronous data-parallel training for Keras 3 on TensorFlow.

Names are imported when first used, so that `ring_keras.launch` starts without
TensorFlow. `__init__.pyi` lists them.
"""

import sys
import warnings

import lazy_loader

from ring_keras import _libraries
from ring_keras._version import __version__ as __version__

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

if "tensorflow" in sys.modules:
    # For graphs that are loaded. A misfit is an error of whatever needs the ops, init()
    # for one; TensorBoard, which imports its page from here, does not.
    try:
        _libraries.ops()
    except ImportError as error:
        warnings.warn(str(error), RuntimeWarning, stacklevel=2)
