"""A copy of variables in one piece of memory."""

import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ring_keras import keras_internals as internals

__all__ = ["PartCopy"]

# Of where each value begins.
_ALIGNMENT = 64


class PartCopy:
    """Copies the values of some variables one behind the other, time and again.

    To the same memory, which is of the operating system's from the beginning. So that
    takes as long as the memory takes to move them, a third of what `numpy()` takes of
    each variable.

    Args:
        variables: All of them whole on this rank.
        tail: Bytes that come last, the same in each copy.
    """

    def __init__(self, variables: Sequence[Any], tail: bytes = b"") -> None:
        inner = [internals.tensorflow_variable(variable) for variable in variables]
        self.places: list[tuple[int, int]] = []
        """Where each value begins, and how many bytes it has."""
        end = 0
        for variable in inner:
            nbytes = variable.dtype.base_dtype.size * variable.shape.num_elements()
            self.places.append((end, nbytes))
            end += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        self.tail = (end, len(tail))
        """The same of the tail."""
        # Begins at a page, so that a disk can take it as it lies there.
        nbytes = end + len(tail)
        memory = np.empty(nbytes + mmap.PAGESIZE, np.uint8)
        begin = -memory.ctypes.data % mmap.PAGESIZE
        self._memory = memory[begin : begin + nbytes]
        self._memory.fill(0)  # Else the first copy would have to wait for its pages.
        self._memory[end:] = np.frombuffer(tail, np.uint8)
        # One call for all, traced and run for the first time here, and not while a step
        # waits. The tensors share the variables' memory, which no step changes before
        # the copy is made.
        self._variables = inner
        self._read = tf.function(
            lambda: [variable.read_value() for variable in inner], autograph=False
        ).get_concrete_function()
        self._read()

    def take(self) -> memoryview:
        """The values that there are now; what was taken before is overwritten."""
        for tensor, (begin, nbytes) in zip(self._read(), self.places, strict=True):
            value = _array(tensor)
            target = self._memory[begin : begin + nbytes].view(value.dtype)
            np.copyto(target.reshape(value.shape), value)
        return self._memory.data


def _array(tensor: tf.Tensor) -> Any:
    """Its numbers, without a copy where they are in memory of this host."""
    if tensor.device.rpartition(":")[0].endswith("CPU"):
        try:
            return np.asarray(memoryview(tensor))
        except (BufferError, TypeError, ValueError):
            pass  # NumPy has no such numbers by itself: bfloat16, float8.
    return tensor.numpy()
