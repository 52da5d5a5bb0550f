"""Horovod's names for what ring_keras does.

A script that imports `horovod.tensorflow`, `horovod.tensorflow.keras`,
`horovod.keras` or `horovod.torch` imports `ring_keras.horovod.tensorflow` and so on
instead, or is started with `ringrun --horovod`. The modules here turn Horovod's
arguments into those of ring_keras, with Horovod's meaning. docs/horovod.md says what
differs.
"""

import lazy_loader

# Not before it is used: what comes with it may load Keras's back end, and a module
# below may say which that is.
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, submod_attrs={"_run": ["run"]}
)

__version__ = "0.28.1"
"""The release of Horovod whose names these are."""
