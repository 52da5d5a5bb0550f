"""Every private name of Keras and tf.data that this package relies on.

Nothing else in the package touches one, but for classes that override a method of
`tf.data`. `init()` compares those with the installed releases, and names what
is gone; what only instances have is read by `private`, which does the same.

Names are imported when first used, as not all need TensorFlow. `__init__.pyi` lists
them.
"""

from typing import Any

import lazy_loader

_first, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    # Steps ask for some of them each time.
    value = globals()[name] = _first(name)
    return value
