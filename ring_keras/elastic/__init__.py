"""Loops that go on when ranks are lost or come: see docs/elastic.md.

Names are imported when first used: states of plain values need no TensorFlow.
`__init__.pyi` lists them.
"""

from typing import Any

import lazy_loader

from ring_keras._requirements import require_tensorflow

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    if name in {"KerasState", "TensorFlowState"}:
        require_tensorflow(f"ring_keras.elastic.{name}")
    return _load(name)
