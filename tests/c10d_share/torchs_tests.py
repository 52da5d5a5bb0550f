"""PyTorch's tests, as they are installed with it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["LikeGloo", "load"]

_MODULE = "torch.testing._internal.distributed.distributed_test"
_READ = 'BACKEND = os.environ["BACKEND"]'


class LikeGloo(str):
    """A back end's name, which counts as gloo's where a test asks for that.

    Tests of CPU tensors, and of all that is not NCCL's, do.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return other == "gloo" or str(self) == other

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash("gloo")


def load(backend: str) -> ModuleType:
    """The module, with this back end.

    Raises:
        RuntimeError: If this PyTorch reads the name elsewhere.
    """
    spec = importlib.util.find_spec(_MODULE)
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).read_text()
    if source.count(_READ) != 1:
        raise RuntimeError(f"expected {_READ!r} once in {spec.origin}")
    module = importlib.util.module_from_spec(spec)
    vars(module)["_LIKE_GLOO"] = LikeGloo(backend)
    sys.modules[_MODULE] = module
    source = source.replace(_READ, "BACKEND = _LIKE_GLOO")
    code: Any = compile(source, spec.origin, "exec", dont_inherit=True)
    exec(code, vars(module))
    return module
