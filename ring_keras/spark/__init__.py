"""Jobs as barrier stages of Spark; see docs/engines.md.

Needs `pip install ring-keras[spark]`, and a Java that Spark runs on. Names are imported
when first used, so that Spark's workers need no TensorFlow to start ranks.
`__init__.pyi` lists them.
"""

import importlib

import lazy_loader

try:
    for name in ("pyarrow", "pyspark"):
        importlib.import_module(name)
except ImportError as error:
    raise ImportError(
        "[RK710] ring_keras.spark needs Spark: pip install 'ring-keras[spark]'"
    ) from error

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
