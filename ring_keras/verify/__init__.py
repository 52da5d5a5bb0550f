"""Do N ranks train as one process would? `compare`, or `ring verify`.

Names are imported when first used. `__init__.pyi` lists them.
"""

from ring_keras._requirements import require_tensorflow

require_tensorflow("ring_keras.verify")

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
