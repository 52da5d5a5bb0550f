"""The C++ core, as tf_ops/bindings exposes it. Imports no TensorFlow."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

_Array = NDArray[Any]

# Address in GPU memory, and shape.
_DeviceTensor = tuple[int, Sequence[int]]
# Where an output goes, and how many bytes there are.
_OutputMemory = tuple[int, int]

def init(
    *,
    rank: int = ...,
    size: int = ...,
    store_host: str = ...,
    store_port: int = ...,
    token: bytes = ...,
    generation: int = ...,
    host_name: str = ...,
    bind_address: str = ...,
    transport: str = ...,
    tcp_streams: int = ...,
    tuning: Mapping[str, int] = ...,
    autotune: bool = ...,
    cuda_library_path: str = ...,
    init_timeout_s: float = ...,
    collective_timeout_s: float = ...,
    stall_warning_s: float = ...,
    log_level: str = ...,
) -> None: ...
def shutdown(reason: str) -> None: ...
def interrupt() -> None: ...
def raise_from_handler() -> None: ...
def is_initialized() -> bool: ...
def topology() -> tuple[int, int, int, int, int, int]: ...
def generation() -> int: ...
def communicator_base() -> int: ...
def use_cuda_device(device: int) -> None: ...
def tuning() -> dict[str, int]: ...
def set_tuning(tuning: Mapping[str, int]) -> None: ...
def log(level: str, text: str) -> None: ...
def add_communicator(ranks: Sequence[int]) -> int: ...
def remove_communicator(communicator_id: int) -> None: ...
def communicator_ranks(communicator_id: int) -> list[int]: ...
def transport_to(rank: int) -> str: ...
def allreduce(
    array: _Array,
    op: str = "sum",
    name: str = "",
    out: _Array | None = None,
    communicator_id: int = 0,
    prescale: float = 1.0,
    postscale: float = 1.0,
    wire_dtype: str | None = None,
) -> _Array: ...
def shared_empty(shape: Sequence[int], dtype: DTypeLike) -> _Array: ...
def allgather(array: _Array, name: str = "", communicator_id: int = 0) -> _Array: ...
def broadcast(
    array: _Array, root: int, name: str = "", communicator_id: int = 0
) -> _Array: ...
def reduce_scatter(
    array: _Array,
    op: str = "sum",
    name: str = "",
    communicator_id: int = 0,
    prescale: float = 1.0,
    postscale: float = 1.0,
) -> _Array: ...
def alltoall(
    array: _Array,
    splits: Sequence[int] | None = None,
    name: str = "",
    communicator_id: int = 0,
) -> tuple[_Array, NDArray[np.int64]]: ...
def barrier(name: str = "", communicator_id: int = 0) -> None: ...
def join(communicator_id: int = 0) -> int: ...
def set_cuda_library_path(directories: str) -> None: ...
def compile_device_code(architecture: str) -> bytes: ...
def device_architecture(capability: int) -> str: ...
def prepare_device(device: int) -> None: ...
def copy_scaled(
    device: int,
    stream: int,
    from_dtype: str,
    to_dtype: str,
    scale: float,
    segments: NDArray[np.uint64],
) -> None: ...
def sum_pieces(
    device: int,
    stream: int,
    dtype: str,
    pieces: int,
    piece_count: int,
    count: int,
    scale: float,
    sum: int,
) -> None: ...
def cuda_libraries(library_path: str = "") -> list[tuple[str, str, str, str]]: ...
def device_allreduce(
    inputs: Sequence[_DeviceTensor],
    outputs: Sequence[int],
    dtype: str,
    device: int,
    stream: int,
    op: str = "sum",
    name: str = "",
    communicator_id: int = 0,
    prescale: float = 1.0,
    postscale: float = 1.0,
    weight: float = 1.0,
    wire_dtype: str | None = None,
) -> DeviceOperation: ...
def device_broadcast(
    inputs: Sequence[_DeviceTensor],
    outputs: Sequence[int],
    dtype: str,
    device: int,
    stream: int,
    root: int,
    name: str = "",
    communicator_id: int = 0,
) -> DeviceOperation: ...
def device_allgather(
    input: _DeviceTensor,
    output: _OutputMemory,
    dtype: str,
    device: int,
    stream: int,
    name: str = "",
    communicator_id: int = 0,
) -> DeviceOperation: ...
def device_reduce_scatter(
    input: _DeviceTensor,
    output: _OutputMemory,
    dtype: str,
    device: int,
    stream: int,
    op: str = "sum",
    name: str = "",
    communicator_id: int = 0,
    prescale: float = 1.0,
    postscale: float = 1.0,
) -> DeviceOperation: ...
def device_alltoall(
    input: _DeviceTensor,
    output: _OutputMemory,
    dtype: str,
    device: int,
    stream: int,
    splits: Sequence[int] | None = None,
    name: str = "",
    communicator_id: int = 0,
) -> DeviceOperation: ...
def device_count() -> int: ...
def version() -> str: ...
def instruction_set() -> str: ...

class DeviceBuffer:
    def __init__(self, device: int, nbytes: int) -> None: ...
    @property
    def address(self) -> int: ...
    def write(self, array: _Array) -> None: ...
    def read(self, array: _Array) -> None: ...

class DeviceStream:
    def __init__(self, device: int) -> None: ...
    @property
    def handle(self) -> int: ...
    def synchronize(self) -> None: ...

class DeviceOperation:
    def follow(self, stream: int) -> None: ...
    def wait(self) -> None: ...
    def is_done(self) -> bool: ...
    def output_shape(self) -> list[int]: ...
    def received_splits(self) -> list[int]: ...

class StoreServer:
    def __init__(
        self,
        bind_address: str,
        port: int,
        size: int,
        generation: int,
        token: bytes,
        heartbeat_timeout_s: float = ...,
    ) -> None: ...
    @property
    def port(self) -> int: ...
    def close(self) -> None: ...
    def ended_ranks(self) -> list[tuple[int, str, bool]]: ...
    def connected_ranks(self) -> int: ...
    def report_exit(self, rank: int, description: str) -> None: ...
