"""Functions by value, whose tracebacks and AutoGraph still find their source."""

from __future__ import annotations

import io
import types
from collections import ChainMap
from typing import Any, ClassVar

import cloudpickle

__all__ = ["dumps"]


def dumps(value: Any) -> bytes:
    """What `pickle.loads` makes a copy of `value` from, functions and classes too."""
    buffer = io.BytesIO()
    _Pickler(buffer).dump(value)
    return buffer.getvalue()


def _in_file(filename: str, *parts: Any) -> types.CodeType:
    return types.CodeType(*parts).replace(co_filename=filename)


def _reduce_code(code: types.CodeType) -> tuple[Any, ...]:
    # Since 3.1.3, cloudpickle says "<dynamic-code>" in place of the file.
    _, parts = cloudpickle.Pickler.dispatch_table[types.CodeType](code)
    return _in_file, (code.co_filename, *parts)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    dispatch_table: ClassVar = ChainMap(
        {types.CodeType: _reduce_code}, cloudpickle.Pickler.dispatch_table
    )
