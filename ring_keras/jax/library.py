"""The library of the calls that JAX's XLA makes."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

import jax

from ring_keras import _native
from ring_keras.errors import RingKerasError

__all__ = ["has_wait", "library", "number_of"]

# tf_ops/kernels/xla/custom_calls.h.
_TARGETS = ("run", "start", "wait")


@functools.cache
def library() -> ctypes.CDLL:
    """Opened, and its handlers known to JAX.

    Raises:
        RingKerasError: If ring_keras was built without it.
    """
    path = Path(_native.__file__).with_name("libring_keras_jax.so")
    if not path.exists():
        raise RingKerasError(
            "[RK662] ring_keras was not built for JAX. In its folder: "
            'CMAKE_ARGS="-DRING_KERAS_BUILD_JAX=ON" pip install --no-build-isolation .'
        )
    # The core that it finds is that of this process, which `_native` has opened.
    opened = ctypes.CDLL(str(path))
    opened.RingKerasXlaHandler.restype = ctypes.c_void_p
    opened.RingKerasXlaNumber.restype = ctypes.c_int64
    for target in _TARGETS:
        name = f"ring_keras.{target}"
        handler = opened.RingKerasXlaHandler(name.encode(), b"Host")
        jax.ffi.register_ffi_target(
            name, jax.ffi.pycapsule(ctypes.c_void_p(handler)), platform="cpu"
        )
    return opened


@functools.cache
def number_of(what: str, name: str) -> int:
    """By which a call says it: of a "kind", a "reduce_op" or a "dtype"."""
    number: int = library().RingKerasXlaNumber(what.encode(), name.encode())
    assert number >= 0, (what, name)
    return number


def has_wait(number: int) -> None:
    """What is compiled waits for the start of this number."""
    library().RingKerasXlaSetHasWait(ctypes.c_int64(number))
