"""Do N ranks train as one process would? `compare`, or `ring verify`.

Names are imported when first used. `__init__.pyi` lists them.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
