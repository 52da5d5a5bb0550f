"""The GPUs of this host, as NVIDIA's driver tells, and which reach each other."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

from ring_keras.launch.doctor.host.settings import config

__all__ = ["gpu_count", "gpu_names", "unreached_pairs"]

_LIBRARY = "libcuda.so.1"
_NAME_NBYTES = 128


def gpu_count() -> int:
    """How many this process may use; 0 without a driver."""
    return len(gpu_names())


@functools.cache
def gpu_names() -> tuple[str, ...]:
    """Of each, by its number; none without a driver."""
    driver = _driver()
    count = ctypes.c_int()
    if driver is None or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return ()
    names = []
    for number in range(count.value):
        name = ctypes.create_string_buffer(_NAME_NBYTES)
        driver.cuDeviceGetName(name, _NAME_NBYTES, _device(driver, number))
        names.append(name.value.decode(errors="replace"))
    return tuple(names)


def unreached_pairs() -> list[tuple[int, int]]:
    """GPUs of which the first cannot read the second's memory."""
    driver = _driver()
    if driver is None:
        return []
    pairs = []
    for first in range(gpu_count()):
        for second in range(gpu_count()):
            if first == second:
                continue
            can = ctypes.c_int()
            devices = _device(driver, first), _device(driver, second)
            error = driver.cuDeviceCanAccessPeer(ctypes.byref(can), *devices)
            if error != 0 or not can.value:
                pairs.append((first, second))
    return pairs


@functools.cache
def _driver() -> ctypes.CDLL | None:
    """Ready to be asked; None if there is none, or no GPU."""
    directories = (config().cuda_library_path or "").split(":")
    paths = [str(Path(directory) / _LIBRARY) for directory in directories if directory]
    for path in (*paths, _LIBRARY):
        try:
            driver = ctypes.CDLL(path)
        except OSError:
            continue
        return driver if driver.cuInit(0) == 0 else None
    return None


def _device(driver: ctypes.CDLL, number: int) -> ctypes.c_int:
    """The driver's handle."""
    device = ctypes.c_int()
    driver.cuDeviceGet(ctypes.byref(device), number)
    return device
