"""Collectives of this process's rank on arrays in GPU memory."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ring_keras import _native
from support.engine_only import rank_and_size
from support.gpu_memory import GpuArray, Stream, call
from support.tensors import Array


@dataclass
class Pending:
    """A collective that was submitted, with what it reads and writes."""

    operation: _native.DeviceOperation
    inputs: list[GpuArray]
    outputs: list[GpuArray] = field(default_factory=list)
    late_dtype: Any = None  # Of an output whose shape was not known before.

    def results(self) -> list[Array]:
        """Waits for it in the stream, not on the host; then gives memory back."""
        stream = self.inputs[0].stream
        try:
            self.operation.follow(stream.handle)
            if self.late_dtype is not None:
                shape = tuple(self.operation.output_shape())
                self.outputs[0].become(shape, self.late_dtype)
            results = [output.read() for output in self.outputs]
            self.operation.wait()
        finally:
            self.free()
        return results

    def free(self) -> None:
        for array in {
            id(array): array for array in self.inputs + self.outputs
        }.values():
            array.free()

    @property
    def result(self) -> Array:
        (result,) = self.results()
        return result


class Gpu:
    """This rank's device and a stream of it, from which it calls collectives."""

    def __init__(self) -> None:
        count = ctypes.c_int()
        call("cudaGetDeviceCount", ctypes.byref(count))
        _, _, local_rank, *_ = _native.topology()
        self.stream = Stream(local_rank % count.value)

    def put(self, arrays: Sequence[Array]) -> list[GpuArray]:
        return [GpuArray.of(self.stream, array) for array in arrays]

    def allreduce(
        self, arrays: Sequence[Array], *, in_place: bool = False, **options: Any
    ) -> Pending:
        inputs = self.put(arrays)
        outputs = inputs
        if not in_place:
            outputs = [GpuArray(self.stream, a.shape, a.dtype) for a in arrays]
        operation = _native.device_allreduce(
            [array.tensor for array in inputs],
            [array.address for array in outputs],
            *self._place(arrays[0]),
            **options,
        )
        return Pending(operation, inputs, outputs)

    def broadcast(self, arrays: Sequence[Array], root: int, **options: Any) -> Pending:
        inputs = self.put(arrays)
        outputs = [GpuArray(self.stream, a.shape, a.dtype) for a in arrays]
        operation = _native.device_broadcast(
            [array.tensor for array in inputs],
            [array.address for array in outputs],
            *self._place(arrays[0]),
            root,
            **options,
        )
        return Pending(operation, inputs, outputs)

    def allgather(self, array: Array, **options: Any) -> Pending:
        return self._with_output(_native.device_allgather, array, options)

    def reduce_scatter(self, array: Array, **options: Any) -> Pending:
        return self._with_output(_native.device_reduce_scatter, array, options)

    def alltoall(self, array: Array, **options: Any) -> Pending:
        return self._with_output(_native.device_alltoall, array, options)

    def _place(self, array: Array) -> tuple[str, int, int]:
        return array.dtype.name, self.stream.device, self.stream.handle

    def _with_output(
        self,
        function: Callable[..., _native.DeviceOperation],
        array: Array,
        options: dict[str, Any],
    ) -> Pending:
        (put,) = self.put([array])
        # Enough for what the tests gather.
        room = max(array.nbytes, 1024) * 4 * rank_and_size()[1]
        output = GpuArray(self.stream, (room,), np.uint8)
        operation = function(
            put.tensor, (output.address, room), *self._place(array), **options
        )
        return Pending(operation, [put], [output], array.dtype)


@functools.cache
def gpu() -> Gpu:
    """This process's, made at first use."""
    return Gpu()


def assert_close(result: Array, expected: Array, relative: float) -> None:
    """Allows for the order of sums in floats of few bits."""
    np.testing.assert_allclose(
        result.astype(np.float64), expected.astype(np.float64), rtol=relative
    )
