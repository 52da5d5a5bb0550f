"""Calls of the engine on buffers in GPU memory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ring_keras import _native
from ring_keras.benchmark.values import Array

__all__ = ["ANCHORS", "DeviceCalls"]

_ROOT = 0

ANCHORS = (
    "busbw to compare with, for large buffers: 480 GB/s on 8 H100 with NVSwitch, "
    "46-48 GB/s per 400G NIC"
)


class DeviceCalls:
    """One collective of this rank, from and to the same buffers each time.

    Args:
        collective: Its name.
        values: What the rank puts in.
        op: How to reduce, if it does.
        output_shape: Of what it gets.
    """

    def __init__(
        self, collective: str, values: Array, op: str, output_shape: tuple[int, ...]
    ) -> None:
        _, _, local_rank, *_ = _native.topology()
        device = local_rank % _native.device_count()
        self._stream = _native.DeviceStream(device)
        self._output = np.empty(output_shape, values.dtype)
        self._input_buffer = _native.DeviceBuffer(device, max(1, values.nbytes))
        self._output_buffer = _native.DeviceBuffer(device, max(1, self._output.nbytes))
        self._input_buffer.write(values)
        self._last: _native.DeviceOperation | None = None
        tensor = (self._input_buffer.address, values.shape)
        to = self._output_buffer.address
        output = (to, self._output.nbytes)
        where = (values.dtype.name, device, self._stream.handle)
        calls: dict[str, Callable[[], _native.DeviceOperation]] = {
            "allreduce": lambda: _native.device_allreduce([tensor], [to], *where, op),
            "broadcast": lambda: _native.device_broadcast(
                [tensor], [to], *where, _ROOT
            ),
            "allgather": lambda: _native.device_allgather(tensor, output, *where),
            "reduce_scatter": lambda: _native.device_reduce_scatter(
                tensor, output, *where, op
            ),
            "alltoall": lambda: _native.device_alltoall(tensor, output, *where),
        }
        self._call = calls[collective]

    def submit(self) -> None:
        """Takes part once more; does not wait for the device."""
        self._last = self._call()

    def finish(self) -> None:
        """Waits until the device has done all that was submitted.

        It does them in the order of the ranks' submissions.
        """
        if self._last is not None:
            self._last.wait()

    def result(self) -> Array:
        """What the collective gives this rank."""
        self.submit()
        self.finish()
        self._output_buffer.read(self._output)
        return self._output
