"""Arrays in GPU memory and streams, by the CUDA runtime alone.

The runtime is the stand-in's or NVIDIA's own, as RING_KERAS_CUDA_LIBRARY_PATH
says, so that the same test runs on both.
"""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path
from typing import Any

import numpy as np

from support.tensors import Array

HOST_TO_DEVICE, DEVICE_TO_HOST = 1, 2
NON_BLOCKING = 1


@functools.cache
def runtime() -> ctypes.CDLL:
    """The library that ring_keras opens, too."""
    names = ("libcudart.so.12", "libcudart.so.13")
    paths = os.environ.get("RING_KERAS_CUDA_LIBRARY_PATH", "").split(os.pathsep)
    candidates = [Path(path) / name for path in paths if path for name in names]
    for candidate in (*candidates, *names):
        try:
            return ctypes.CDLL(str(candidate))
        except OSError:
            continue
    raise AssertionError(f"none of {names} can be opened")


def call(function: str, *arguments: Any) -> None:
    """Calls the runtime; fails if that does."""
    library = runtime()
    error = getattr(library, function)(*arguments)
    if error != 0:
        library.cudaGetErrorString.restype = ctypes.c_char_p
        text = library.cudaGetErrorString(error).decode()
        raise AssertionError(f"{function}: {text} ({error})")


class Stream:
    """A stream of a device, which becomes the thread's current one."""

    def __init__(self, device: int) -> None:
        self.device = device
        handle = ctypes.c_void_p()
        call("cudaSetDevice", device)
        call("cudaStreamCreateWithFlags", ctypes.byref(handle), NON_BLOCKING)
        assert handle.value is not None
        self.handle = handle.value

    def synchronize(self) -> None:
        """Waits until all that it was given is done."""
        call("cudaStreamSynchronize", ctypes.c_void_p(self.handle))

    def is_idle(self) -> bool:
        """Whether that is so now."""
        return bool(runtime().cudaStreamQuery(ctypes.c_void_p(self.handle)) == 0)

    def close(self) -> None:
        """Gives it back."""
        call("cudaStreamDestroy", ctypes.c_void_p(self.handle))


class GpuArray:
    """Memory of the stream's device for an array of that shape and dtype."""

    def __init__(self, stream: Stream, shape: tuple[int, ...], dtype: Any) -> None:
        self.stream = stream
        self.shape = shape
        self.dtype = np.dtype(dtype)
        self.nbytes = int(np.prod(shape, dtype=np.int64)) * self.dtype.itemsize
        pointer = ctypes.c_void_p()
        call("cudaSetDevice", stream.device)
        call("cudaMalloc", ctypes.byref(pointer), ctypes.c_size_t(self.nbytes))
        self.address = pointer.value or 0

    @classmethod
    def of(cls, stream: Stream, array: Array) -> GpuArray:
        """A copy of the array, made in the stream."""
        made = cls(stream, array.shape, array.dtype)
        made.write(array)
        return made

    def become(self, shape: tuple[int, ...], dtype: Any) -> None:
        """An array of that shape and dtype is what the memory now holds."""
        self.shape = shape
        self.dtype = np.dtype(dtype)
        self.nbytes = int(np.prod(shape, dtype=np.int64)) * self.dtype.itemsize

    def write(self, array: Array) -> None:
        """In the stream."""
        self._copy(self.address, array.ctypes.data, HOST_TO_DEVICE)

    def read(self) -> Array:
        """What the array is after all that the stream was given so far."""
        array = np.empty(self.shape, self.dtype)
        self._copy(array.ctypes.data, self.address, DEVICE_TO_HOST)
        self.stream.synchronize()
        return array

    @property
    def tensor(self) -> tuple[int, tuple[int, ...]]:
        """As `_native` takes it."""
        return self.address, self.shape

    def free(self) -> None:
        """Waits for the device first, as cudaFree does."""
        call("cudaFree", ctypes.c_void_p(self.address))

    def _copy(self, to: int, source: int, kind: int) -> None:
        if self.nbytes > 0:
            call(
                "cudaMemcpyAsync",
                ctypes.c_void_p(to),
                ctypes.c_void_p(source),
                ctypes.c_size_t(self.nbytes),
                kind,
                ctypes.c_void_p(self.stream.handle),
            )
