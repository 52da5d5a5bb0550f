"""What is installed, without importing TensorFlow, which would take seconds."""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
import sys
from pathlib import Path

from ring_keras._libraries import build_info, rebuild_command
from ring_keras._version import __version__
from ring_keras.launch.doctor.finding import Finding, State
from ring_keras.launch.doctor.job_shape import JobShape

__all__ = ["PACKAGE_DIR", "TENSORFLOW_WHEELS", "check", "distribution", "facts"]

PACKAGE_DIR = Path(__file__).resolve().parents[3]
TENSORFLOW_WHEELS = ("tensorflow", "tensorflow-cpu")


def check(job: JobShape) -> list[Finding]:
    """ring_keras, Python, the core, and Keras."""
    libc = " ".join(platform.libc_ver())
    return [
        Finding("ring_keras", State.OK, f"{__version__} in {PACKAGE_DIR}"),
        Finding("Python", State.OK, f"{platform.python_version()} ({sys.executable})"),
        Finding("machine", State.OK, f"{platform.machine()}, {libc}"),
        *_core(),
        _keras(),
    ]


def facts() -> dict[str, str]:
    """What should be the same on all hosts; empty where there is none."""
    return {
        "ring_keras": __version__,
        "python": platform.python_version(),
        "tensorflow": (distribution(*TENSORFLOW_WHEELS) or ("", ""))[1],
        "torch": (distribution("torch") or ("", ""))[1],
        "jax": (distribution("jax") or ("", ""))[1],
        "keras": (distribution("keras") or ("", ""))[1],
        "numpy": (distribution("numpy") or ("", ""))[1],
        "libc": " ".join(platform.libc_ver()),
        "machine": platform.machine(),
        "libraries": _digest(),
    }


def distribution(*names: str) -> tuple[str, str] | None:
    """Name and version of the first that is installed."""
    for name in names:
        try:
            return name, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _digest() -> str:
    """Of the core and of the libraries of ops: equal if built from the same."""
    digest = hashlib.sha256()
    try:
        built_for = build_info().tensorflow_versions
    except ImportError:
        return ""
    digest.update(built_for.encode())
    for path in sorted(PACKAGE_DIR.glob("libring_keras_*.so")):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _core() -> list[Finding]:
    try:
        from ring_keras import _native
    except ImportError as error:
        return [
            Finding(
                "C++ core",
                State.FAILURE,
                f"cannot be loaded: {error}",
                expected="a core that was built for this Python",
                fix=rebuild_command(),
            )
        ]
    return [
        Finding("C++ core", State.OK, _native.version()),
        Finding("reductions", State.OK, f"by {_native.instruction_set()}"),
    ]


def _keras() -> Finding:
    found = distribution("keras")
    if found is None or int(found[1].split(".")[0]) < 3:
        text = "not installed" if found is None else found[1]
        fix = f"{sys.executable} -m pip install 'keras>=3.3'"
        return Finding("Keras", State.FAILURE, text, expected="Keras 3", fix=fix)
    return Finding("Keras", State.OK, found[1])
