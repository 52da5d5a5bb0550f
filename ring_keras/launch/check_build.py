"""`ringrun --check-build`: what is there, and what is missing."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ring_keras._libraries import build_info, rebuild_command
from ring_keras.config import Config

_PACKAGE = Path(__file__).resolve().parent.parent
_TENSORFLOW_WHEELS = ("tensorflow", "tensorflow-cpu")
# Every rank holds connections to the others, and its data's files.
_FEW_FILES = 1024
_NO_GPU_LIBRARY = "not found; for GPUs: pip install ring-keras[cuda], and a driver"


@dataclass(frozen=True)
class _Finding:
    title: str
    text: str
    good: bool = True
    needed: bool = True


def check_build() -> int:
    """Prints the findings; returns 1 if training cannot work here, else 0."""
    findings = [finding for check in _CHECKS for finding in check()]
    width = max(len(finding.title) for finding in findings)
    for finding in findings:
        mark = "ok" if finding.good else "NO" if finding.needed else "--"
        print(f"  [{mark}] {finding.title:<{width}}  {finding.text}")
    bad = any(finding.needed and not finding.good for finding in findings)
    return 1 if bad else 0


def _versions() -> list[_Finding]:
    from ring_keras import __version__

    return [
        _Finding("ring_keras", f"{__version__} in {_PACKAGE}"),
        _Finding("Python", f"{platform.python_version()} ({sys.executable})"),
        _Finding("machine", f"{platform.machine()}, {_cores()} cores"),
    ]


def _core() -> list[_Finding]:
    try:
        from ring_keras import _native
    except ImportError as error:
        text = f"{error}; build it: {rebuild_command()}"
        return [_Finding("C++ core", text, good=False)]
    return [
        _Finding("C++ core", _native.version()),
        _Finding("reductions", _native.instruction_set()),
    ]


def _operations() -> list[_Finding]:
    """Without importing TensorFlow, which would take seconds."""
    found = _distribution(_TENSORFLOW_WHEELS)
    if found is None:
        missing = "not installed; pip install tensorflow-cpu"
        return [_Finding("TensorFlow", missing, good=False)]
    name, version = found
    tensorflow = _Finding("TensorFlow", f"{version} ({name})")
    try:
        text = f"built for TensorFlow {build_info().tensorflow_versions}"
    except ImportError as error:
        return [tensorflow, _Finding("operations", str(error), good=False)]
    major, minor = version.split(".")[:2]
    library = _PACKAGE / f"libring_keras_tf_{major}_{minor}.so"
    fits = library.exists()
    if not fits:
        text += f", and there is no {library.name}; build it: {rebuild_command()}"
    return [tensorflow, _Finding("operations", text, good=fits)]


def _keras() -> list[_Finding]:
    found = _distribution(("keras",))
    if found is None:
        return [_Finding("Keras", "not installed; pip install keras", good=False)]
    fits = int(found[1].split(".")[0]) >= 3
    return [_Finding("Keras", found[1] + ("" if fits else "; needs 3"), good=fits)]


def _shared_memory() -> list[_Finding]:
    try:
        os.close(os.memfd_create("ring_keras"))
    except OSError as error:
        text = f"no memfd ({error.strerror}); ranks on one host use TCP"
        return [_Finding("transport shm", text, good=False)]
    return [_Finding("transport shm", "memfd works")]


def _tcp() -> list[_Finding]:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = "{}:{}".format(*server.getsockname())
    except OSError as error:
        text = f"cannot listen on 127.0.0.1: {error.strerror}"
        return [_Finding("transport tcp", text, good=False)]
    return [_Finding("transport tcp", f"could listen on {address}")]


def _gpu_libraries() -> list[_Finding]:
    """NVIDIA's, which only tensors on GPUs need."""
    try:
        from ring_keras import _native
    except ImportError:
        return []  # Said above.
    found = _native.cuda_libraries(Config.from_environment().cuda_library_path or "")
    return [
        _Finding(title, f"{version or 'unknown version'} in {path}")
        if not problem
        else _Finding(title, _NO_GPU_LIBRARY, good=False, needed=False)
        for title, version, path, problem in found
    ]


def _limits() -> list[_Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = soft == resource.RLIM_INFINITY or soft >= _FEW_FILES
    text = f"{soft} (may be raised to {hard}: ulimit -n)"
    return [_Finding("open files", text, good=enough)]


def _distribution(names: tuple[str, ...]) -> tuple[str, str] | None:
    for name in names:
        try:
            return name, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _cores() -> int:
    return len(os.sched_getaffinity(0))


_CHECKS: tuple[Callable[[], list[_Finding]], ...] = (
    _versions,
    _core,
    _operations,
    _keras,
    _shared_memory,
    _tcp,
    _gpu_libraries,
    _limits,
)
