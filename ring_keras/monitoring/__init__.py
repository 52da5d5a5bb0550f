"""What the engine sees of a run: where the time of a step goes, and who is slow.

Names are imported when first used, so that `ring_keras.monitoring.analyze` starts
without TensorFlow. `__init__.pyi` lists them.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
