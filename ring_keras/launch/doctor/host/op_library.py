"""Whether Keras's back end is there, and what was built for it loads."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

from ring_keras._libraries import (
    build_info,
    fitting_tensorflow_command,
    rebuild_command,
)
from ring_keras.config import keras_backend
from ring_keras.launch.doctor.finding import Finding, State
from ring_keras.launch.doctor.host.software import (
    PACKAGE_DIR,
    TENSORFLOW_WHEELS,
    distribution,
)
from ring_keras.launch.doctor.job_shape import JobShape

__all__ = ["check"]

_TIMEOUT_S = 60

# Keras's other back ends, of which each is a package of this name.
_OTHERS = {"torch": "PyTorch", "jax": "JAX"}

# TensorFlow's own libraries first, whose symbols the op library needs. Importing all
# of TensorFlow would take seconds more, and find nothing else.
_LOAD = """
import ctypes, os, sys
for path in sys.argv[1:]:
    try:
        ctypes.CDLL(path, os.RTLD_NOW | os.RTLD_GLOBAL)
    except OSError as error:
        sys.exit(str(error))
"""


def check(job: JobShape) -> list[Finding]:
    """Loads it, in a process of its own."""
    backend = keras_backend()
    if backend.name in _OTHERS:
        return _other(backend.name, backend.source)
    found = distribution(*TENSORFLOW_WHEELS)
    if found is None:
        return [
            Finding(
                "TensorFlow",
                State.FAILURE,
                "not installed",
                expected="TensorFlow 2.16 or newer",
                fix=f"{sys.executable} -m pip install tensorflow-cpu",
            )
        ]
    name, version = found
    return [Finding("TensorFlow", State.OK, f"{version} ({name})"), _ops(version)]


def _other(name: str, source: str) -> list[Finding]:
    """Of a back end that is not TensorFlow."""
    title = _OTHERS[name]
    found = distribution(name)
    if found is None:
        return [
            Finding(
                title,
                State.FAILURE,
                f"not installed, and Keras's back end is {name} ({source})",
                expected=title,
                fix=f"{sys.executable} -m pip install {name}",
            )
        ]
    text = f"{found[1]}: Keras's back end is {name} ({source})"
    return [Finding(title, State.OK, text), *(_calls() if name == "jax" else [])]


def _calls() -> list[Finding]:
    """What `ring_keras.jax.library` opens."""
    library = PACKAGE_DIR / "libring_keras_jax.so"
    if library.exists():
        return [Finding("operations", State.OK, f"built for JAX: {library.name}")]
    return [
        Finding(
            "operations",
            State.FAILURE,
            f"not built: there is no {library.name}",
            expected="a library of calls that JAX compiles",
            fix=f'CMAKE_ARGS="-DRING_KERAS_BUILD_JAX=ON" {rebuild_command()}',
        )
    ]


def _ops(version: str) -> Finding:
    try:
        built_for = build_info().tensorflow_versions
    except ImportError:
        built_for = ""
    major, minor = version.split(".")[:2]
    library = PACKAGE_DIR / f"libring_keras_tf_{major}_{minor}.so"
    fix = rebuild_command()
    if not built_for:
        problem = f"not built: there is no {library.name}"
    elif not library.exists():
        problem = f"built for TensorFlow {built_for}: there is no {library.name}"
        # A wheel's user has no compiler.
        fix = f"{fitting_tensorflow_command()}; or build it: {fix}"
    else:
        problem = _loading_problem(library)
    if problem:
        return Finding(
            "operations",
            State.FAILURE,
            problem,
            expected=f"an op library that was built for TensorFlow {major}.{minor}",
            fix=fix,
        )
    text = f"built for TensorFlow {built_for}; {library.name} loads"
    return Finding("operations", State.OK, text)


def _loading_problem(library: Path) -> str:
    """Empty if it loads."""
    spec = importlib.util.find_spec("tensorflow")
    if spec is None or spec.origin is None:
        return "the package tensorflow is not where its metadata says"
    directory = Path(spec.origin).parent
    names = ("libtensorflow_framework.so.2", "libtensorflow_cc.so.2")
    needed = [path for path in map(directory.joinpath, names) if path.exists()]
    try:
        ended = subprocess.run(
            [sys.executable, "-c", _LOAD, *map(str, needed), str(library)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{library.name} did not load within {_TIMEOUT_S} s"
    if ended.returncode == 0:
        return ""
    said = ended.stderr.decode(errors="replace").strip().splitlines()
    return f"{library.name} does not load: {said[-1] if said else ended.returncode}"
