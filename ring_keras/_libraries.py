"""Loads the op library that was built for the running TensorFlow.

An op library works with one minor version of TensorFlow. Where the versions
differ, the errors here name both, and the command that mends it.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import importlib
import importlib.metadata
import json
import re
import sys
import urllib.parse
from pathlib import Path
from types import ModuleType

from ring_keras._autograph import leave_unconverted
from ring_keras._call_order import order_calls
from ring_keras._version import __version__

_PACKAGE_DIR = Path(__file__).resolve().parent


@dataclasses.dataclass(frozen=True)
class BuildInfo:
    """How the libraries of this package were built.

    Attributes:
        version: Of ring_keras.
        tensorflow_versions: That op libraries were compiled against: "2.20.0, 2.21.0".
        cxx11_abi: The value of _GLIBCXX_USE_CXX11_ABI, TensorFlow's.
        compiler: Name and version.
        python_version: That the Python module was compiled for.
    """

    version: str
    tensorflow_versions: str
    cxx11_abi: int
    compiler: str
    python_version: str


def build_info() -> BuildInfo:
    """Reads how the libraries were built; imports no TensorFlow.

    Raises:
        ImportError: If they were not.
    """
    path = _PACKAGE_DIR / "_build_info.json"
    try:
        return BuildInfo(**json.loads(path.read_text()))
    except FileNotFoundError:
        raise ImportError(
            "[RK701] "
            f"ring_keras in {_PACKAGE_DIR} has no C++ libraries. Build them: "
            f"{rebuild_command()}"
        ) from None


@functools.cache
def ops() -> ModuleType:
    """The TensorFlow ops of this package, as Python functions.

    Raises:
        ImportError: If the op library is missing or does not fit TensorFlow.
    """
    import tensorflow as tf

    path = _op_library(tf.__version__)
    if not path.exists():
        raise ImportError(_mismatch_message(tf.__version__))
    try:
        library: ModuleType = tf.load_op_library(str(path))
    except tf.errors.NotFoundError as error:
        if "undefined symbol" not in str(error):
            raise
        raise ImportError(f"{_mismatch_message(tf.__version__)} ({error})") from None
    leave_unconverted(__package__)
    order_calls()
    return library


@functools.cache
def has_xla_kernels() -> bool:
    """Whether XLA can compile functions that have collectives in them.

    It can where the op library was built against TensorFlow 2.20 or newer.
    """
    import tensorflow as tf

    ops()
    library = ctypes.CDLL(str(_op_library(tf.__version__)))
    return hasattr(library, "RingKerasHasXlaKernels")


def share_tensors() -> None:
    """Has TensorFlow take the memory for tensors on the CPU where peers can read it.

    Without effect if it has computed something before, or if the engine has no
    such memory.
    """
    import tensorflow as tf

    ops()
    ctypes.CDLL(str(_op_library(tf.__version__))).RingKerasShareTensors()


def _op_library(tensorflow_version: str) -> Path:
    major, minor = tensorflow_version.split(".")[:2]
    return _PACKAGE_DIR / f"libring_keras_tf_{major}_{minor}.so"


def _mismatch_message(found: str) -> str:
    built_for = build_info().tensorflow_versions
    return (
        "[RK706] "
        f"ring_keras {__version__} was built for TensorFlow {built_for}, but "
        f"TensorFlow {found} is installed. An op library works with one minor "
        f"version only. Install one that fits: {fitting_tensorflow_command()}. Or, "
        f"with a C++ compiler, rebuild it: {rebuild_command()}"
    )


def fitting_tensorflow_command() -> str:
    """The shell command that installs the newest TensorFlow with an op library here.

    It names the distribution that is installed: tensorflow, tensorflow-cpu, a
    vendor's.
    """
    found = importlib.metadata.packages_distributions().get("tensorflow")
    name = found[0] if found else "tensorflow"
    newest = build_info().tensorflow_versions.split(", ")[-1]
    return f'{sys.executable} -m pip install "{name}=={newest}"'


def build_problem() -> str | None:
    """What keeps ring_keras from running here; None if nothing does."""
    try:
        importlib.import_module("ring_keras._native")
    except ImportError as error:
        return f"ring_keras is not built ({error}); build it: {rebuild_command()}"
    return None


def rebuild_command() -> str:
    """The shell command that builds this installation's libraries anew."""
    pip = f"{sys.executable} -m pip install"
    try:
        distribution = importlib.metadata.distribution("ring-keras")
    except importlib.metadata.PackageNotFoundError:
        return f"make -C {_PACKAGE_DIR.parent} build"
    # Where pip took the package from (PEP 610); absent if from an index.
    origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    source_dir = urllib.parse.unquote(re.sub("^file://", "", origin.get("url", "")))
    if source_dir.endswith(".whl"):  # The sdist lies beside it.
        source_dir = f"{Path(source_dir).parent}/ring_keras-{__version__}.tar.gz"
    elif not origin:
        return (
            f"{pip} --force-reinstall --no-deps --no-cache-dir "
            f"--no-binary ring-keras ring-keras=={__version__}"
        )
    if origin.get("dir_info", {}).get("editable"):
        return f"{pip} --no-deps --editable {source_dir}"
    return f"{pip} --force-reinstall --no-deps {source_dir}"
