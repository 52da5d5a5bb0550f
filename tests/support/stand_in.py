"""The stand-in for NVIDIA's libraries, tests/stand_in/, built and opened."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

ROOT_DIR = Path(__file__).resolve().parent.parent.parent


@functools.cache
def stand_in_directory() -> Path:
    """Where its libraries are, up to date with their sources.

    Compiles what changed, in the build folder of `setup.py build_ext`, with that
    folder's compiler and options.
    """
    build = _cmake_build()
    with _lock(build.BUILD_DIR):
        build.configure(cpp_tests=True)
        _build(build.BUILD_DIR, "stand_in")
    return build.BUILD_DIR / "stand_in"


@functools.cache
def torch_stand_in_directory() -> Path:
    """The same, with `ring_keras_stand_in_torch.so` beside them.

    That is torch's device "cuda" on the stand-in, for this Python's torch, which has
    none. In a build folder of its own: the other one's options stay as they are.
    """
    build = _cmake_build()
    directory: Path = build.BUILD_DIR.with_name(f"{build.BUILD_DIR.name}-torch")
    with _lock(directory):
        build.run_cmake(
            *("-S", str(ROOT_DIR), "-B", str(directory), "-G", "Ninja"),
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-DCMAKE_MAKE_PROGRAM={build.find_tool('ninja', 'BIN_DIR')}",
            *("-DRING_KERAS_BUILD_TORCH=ON", "-DRING_KERAS_BUILD_TESTS=ON"),
            "-DRING_KERAS_BUILD_KERNELS=OFF",
        )
        _build(directory, "stand_in_torch")
    return directory / "stand_in"


def _cmake_build() -> ModuleType:
    sys.path.insert(0, str(ROOT_DIR))
    from build_support import cmake_build

    return cmake_build


@contextlib.contextmanager
def _lock(directory: Path) -> Iterator[None]:
    """For test runs, of which there may be several."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".stand_in_lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(directory: Path, target: str) -> None:
    build = _cmake_build()
    build.run_cmake(
        *("--build", str(directory), "--target", target),
        *("--parallel", str(build.job_count())),
    )


def stand_in_environment(
    directory: Path | None = None, **variables: str
) -> dict[str, str]:
    """What a rank needs to take the stand-in for its GPUs; some time passes there
    before each piece of work, and it has room for one of NCCL's kernels.

    `directory`: where its libraries are; None is `stand_in_directory()`.
    """
    return {
        "CUDA_VISIBLE_DEVICES": "0,1,2,3",
        "RING_KERAS_CUDA_LIBRARY_PATH": str(directory or stand_in_directory()),
        "STAND_IN_JITTER_US": "300",
        "STAND_IN_NCCL_KERNELS": "1",
        "TESTS_WITHOUT_TENSORFLOW": "1",
    } | variables


class Control:
    """The functions of tests/stand_in/stand_in.h, in this process."""

    def __init__(self) -> None:
        directory = os.environ["RING_KERAS_CUDA_LIBRARY_PATH"]
        self._library = ctypes.CDLL(f"{directory}/libring_keras_stand_in.so")
        self._nccl = ctypes.CDLL(f"{directory}/libnccl.so.2")
        self._library.RingKerasStandInHold.restype = ctypes.c_void_p
        self._library.RingKerasStandInLog.restype = ctypes.c_char_p

    def hold(self, stream: int) -> int:
        """Makes the stream's later work wait until `open`."""
        gate = self._library.RingKerasStandInHold(ctypes.c_void_p(stream))
        assert isinstance(gate, int)
        return gate

    def open(self, gate: int) -> None:
        """Lets the stream go on."""
        self._library.RingKerasStandInOpen(ctypes.c_void_p(gate))

    def take_back(self, memory: int) -> None:
        """As an allocator that gives the memory to another tensor."""
        assert self._library.RingKerasStandInTakeBack(ctypes.c_void_p(memory)) == 0

    def fail_device(self, error: int) -> None:
        """Calls of the runtime fail from here on; 0 ends that."""
        self._library.RingKerasStandInFailDevice(error)

    def fail_communicators(self, error: int) -> None:
        """Gives every communicator of NCCL's an asynchronous error."""
        self._nccl.RingKerasStandInFailCommunicators(error)

    def communicators(self) -> int:
        """How many of NCCL's are alive."""
        self._nccl.RingKerasStandInCommunicators.restype = ctypes.c_int64
        return int(self._nccl.RingKerasStandInCommunicators())

    def log(self) -> list[str]:
        """What was launched since the last call, in that order."""
        text: bytes = self._library.RingKerasStandInLog()
        self._library.RingKerasStandInClearLog()
        return text.decode().splitlines()
