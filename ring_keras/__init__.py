"""Synchronous data-parallel training for Keras 3.

Names are imported when first used, so that `ring_keras.launch` starts without
TensorFlow. `__init__.pyi` lists them.
"""

import sys
import warnings
from typing import Any

import lazy_loader

from ring_keras import _libraries, _requirements
from ring_keras._version import __version__ as __version__

_of_tensorflow, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    of_back_end = _requirements.of_back_end(name)
    return _of_tensorflow(name) if of_back_end is None else of_back_end


if "tensorflow" in sys.modules:
    # For graphs that are loaded. A misfit is an error of whatever needs the ops, init()
    # for one; TensorBoard, which imports its page from here, does not.
    try:
        _libraries.ops()
    except ImportError as error:
        warnings.warn(str(error), RuntimeWarning, stacklevel=2)
