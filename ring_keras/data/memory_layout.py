"""How arrays lie in shared memory, and what is made of them there."""

import ctypes
import hashlib
import mmap
import os
from typing import Any

import numpy as np
import tensorflow as tf

from ring_keras.data.shared_memory import SharedMemory
from ring_keras.values.encoding import decode, encode

__all__ = ["arrays_in", "describe", "digest_of", "write_arrays"]

_BLOCK_NBYTES = 64 << 20
# At the end of the memory: how long the description is that lies before it.
_LENGTH_NBYTES = 8
# So many pages stand for all of it.
_PAGES = 64


class SharedArray(np.ndarray[Any, Any]):
    """An array in shared memory, of which TensorFlow makes a tensor without a copy."""

    def __tf_tensor__(
        self, dtype: tf.DType | None = None, name: str | None = None
    ) -> tf.Tensor:
        plain = np.asarray(self)
        if (
            self.size
            and not self.flags.writeable
            and self.flags.c_contiguous
            and isinstance(_owner(self), SharedMemory)
            and dtype in (None, tf.as_dtype(self.dtype))
            and (tf.executing_eagerly() or tf.inside_function())
        ):
            # NumPy hands on nothing that is read-only. Nothing writes here: a tensor
            # whose memory is not TensorFlow's is never computed in place.
            content = (ctypes.c_char * self.nbytes).from_address(self.ctypes.data)
            content.owner = self  # type: ignore[attr-defined]
            writeable = np.ndarray(self.shape, self.dtype, buffer=content)  # type: ignore[arg-type]
            try:
                return tf.experimental.dlpack.from_dlpack(writeable.__dlpack__())
            except BufferError:
                pass  # A type of numbers that DLPack does not have.
        return tf.convert_to_tensor(plain, dtype, name=name)

    def __getitem__(self, index: Any) -> Any:
        return _plain_if_copied(super().__getitem__(index))

    def __array_wrap__(self, array: Any, *args: Any) -> Any:
        wrapped = super().__array_wrap__(array, *args)
        return _plain_if_copied(wrapped) if wrapped.ndim else wrapped[()]

    def __reduce__(self) -> Any:
        return np.asarray(self).__reduce__()


def _owner(array: Any) -> Any:
    while isinstance(array, np.ndarray):
        array = array.base
    return array


def _plain_if_copied(result: Any) -> Any:
    if not isinstance(result, SharedArray) or _owner(result) is not None:
        return result
    return result.view(np.ndarray)


def write_arrays(structure: Any, descriptor: int) -> None:
    """Writes what `arrays_in` reads.

    Raises:
        TypeError: If there is anything in it that is no array of plain values.
    """
    arrays = [_to_array(leaf) for leaf in tf.nest.flatten(structure)]
    described, end = [], 0
    for array in arrays:
        dtype, shape = _described(array.dtype), list(array.shape)
        described.append([dtype, shape, end])
        end += -(-array.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    numbered = tf.nest.pack_sequence_as(structure, range(len(arrays)))
    description = encode([numbered, described])
    tail = description + len(description).to_bytes(_LENGTH_NBYTES, "big")
    os.truncate(descriptor, end + len(tail))
    for array, (_, _, start) in zip(arrays, described, strict=True):
        _write(array, descriptor, start)
    _write(np.frombuffer(tail, np.uint8), descriptor, end)


def arrays_in(memory: SharedMemory) -> Any:
    """The arrays, read-only, which keep the memory for as long as there is one."""
    numbered, described = _description(memory)
    arrays = [
        SharedArray(shape, _dtype(dtype), memory, start)
        if 0 not in shape
        else np.empty(shape, _dtype(dtype))
        for dtype, shape, start in described
    ]
    return tf.nest.map_structure(lambda number: arrays[number], numbered)


def describe(memory: SharedMemory) -> str:
    """In words."""
    _, described = _description(memory)
    return ", ".join(f"{dtype}{shape}" for dtype, shape, _ in described)


def digest_of(memory: SharedMemory) -> str:
    """Of the description and of a few pages: the same for the same arrays."""
    nbytes = len(memory)
    digest = hashlib.sha256(f"{nbytes}".encode())
    for start in np.linspace(0, max(nbytes - mmap.PAGESIZE, 0), _PAGES, dtype=np.int64):
        digest.update(memory[start : start + mmap.PAGESIZE])
    return digest.hexdigest()


def _description(memory: SharedMemory) -> Any:
    end = len(memory) - _LENGTH_NBYTES
    length = int.from_bytes(memory[end:], "big")
    return decode(memory[end - length : end])


def _to_array(leaf: Any) -> np.ndarray[Any, Any]:
    array = np.asarray(leaf) if hasattr(leaf, "shape") else None
    if array is None or array.dtype.hasobject:
        what = type(leaf).__name__
        if array is not None:
            what += " of Python objects"
        raise TypeError(
            "ring_keras.data.shared_array takes arrays of numbers, bools or text, in "
            f"tuples, lists and dicts. Received: {what}. Make an array of it first, of "
            "lists that differ in length with keras.utils.pad_sequences."
        )
    return array


def _described(dtype: "np.dtype[Any]") -> Any:
    is_extension = dtype.kind == "V" and dtype.names is None  # As bfloat16 is.
    return dtype.name if is_extension else np.lib.format.dtype_to_descr(dtype)


def _dtype(described: Any) -> "np.dtype[Any]":
    return np.lib.format.descr_to_dtype(described)


def _write(array: np.ndarray[Any, Any], descriptor: int, start: int) -> None:
    if array.nbytes == 0:
        return
    rows = array if array.ndim else array[None]
    count = max(_BLOCK_NBYTES * len(rows) // array.nbytes, 1)
    for first in range(0, len(rows), count):
        block = np.ascontiguousarray(rows[first : first + count])
        left = block.reshape(-1).view(np.uint8).data
        while left:
            written = os.pwrite(descriptor, left, start)
            left, start = left[written:], start + written
