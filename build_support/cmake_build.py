"""Lets setuptools build the libraries of the package with CMake."""

from __future__ import annotations

import importlib
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

from setuptools import Extension
from setuptools.command.build_ext import build_ext

ROOT_DIR = Path(__file__).resolve().parent.parent

# One per Python, kept between builds: a second build compiles what changed.
BUILD_DIR = ROOT_DIR / "build" / f"cmake-{sys.implementation.cache_tag}"

# What CMake puts into the package; the op library's name has TensorFlow's
# version in it.
LIBRARY_PATTERNS = (
    "_native.*.so",
    "_torch_*.so",
    "libring_keras_core.so",
    "libring_keras_jax.so",
    "libring_keras_tf_*.so",
    "_build_info.json",
)


class CMakeExtension(Extension):
    """Stands for all libraries of the package; CMake knows their sources."""

    def __init__(self) -> None:
        super().__init__("ring_keras._native", sources=[])


class CMakeBuild(build_ext):
    """Builds the libraries and installs them beside the Python sources.

    In a wheel that is the wheel's `ring_keras/`; with `--inplace` and for an
    editable install, the source tree's.
    """

    user_options: ClassVar = [
        *build_ext.user_options,
        ("cpp-tests", None, "build the C++ tests too"),
        ("core-only", None, "compile what needs no TensorFlow, and install nothing"),
        ("libraries-from=", None, "take what was built before from this folder"),
    ]
    boolean_options: ClassVar = [
        *build_ext.boolean_options,
        "cpp-tests",
        "core-only",
    ]

    def initialize_options(self) -> None:
        super().initialize_options()
        self.cpp_tests = False
        self.core_only = False
        self.libraries_from: str | None = None

    def run(self) -> None:
        if self.libraries_from is not None:
            package_dir = self._package_dir(in_source=bool(self.inplace))
            package_dir.mkdir(parents=True, exist_ok=True)
            for path in _libraries_in(Path(self.libraries_from)):
                shutil.copy(path, package_dir / path.name)
            return
        require_compiler()
        configure(cpp_tests=bool(self.cpp_tests), core_only=bool(self.core_only))
        build = ("--build", str(BUILD_DIR), "--parallel", str(job_count()))
        if self.core_only:
            run_cmake(*build, "--target", "ring_keras_core")
            return
        run_cmake(*build)
        install_dir = self._package_dir(in_source=bool(self.inplace))
        run_cmake("--install", str(BUILD_DIR), "--prefix", str(install_dir.resolve()))
        # One built for another TensorFlow or Python has another name, and does
        # not fit the core that was installed now.
        manifest = (BUILD_DIR / "install_manifest.txt").read_text()
        # CMake 3 writes "./" into its paths.
        installed = {Path(line).resolve() for line in manifest.splitlines()}
        for path in _libraries_in(install_dir):
            if path.resolve() not in installed:
                path.unlink()

    def get_outputs(self) -> list[str]:
        return [str(path) for path in _libraries_in(self._package_dir(False))]

    def get_output_mapping(self) -> dict[str, str]:
        if not self.inplace:
            return {}
        built_dir = self._package_dir(in_source=False)
        return {
            str(built_dir / path.name): str(path)
            for path in _libraries_in(self._package_dir(in_source=True))
        }

    def _package_dir(self, in_source: bool) -> Path:
        return (ROOT_DIR if in_source else Path(self.build_lib)) / "ring_keras"


def require_compiler() -> None:
    """Says how to get a compiler before CMake says so at length."""
    compilers = (os.environ.get("CXX"), "c++", "g++", "clang++")
    if not any(shutil.which(name) for name in compilers if name):
        raise SystemExit(
            "ring_keras needs a C++20 compiler (g++ 11 or newer), and none was "
            "found. Install one: `apt-get install g++` on Debian or Ubuntu, "
            "`dnf install gcc-c++` on Fedora."
        )


def configure(cpp_tests: bool, core_only: bool = False) -> None:
    """Runs CMake's first step; cheap when nothing changed.

    CMAKE_ARGS may hold more options for it.
    """
    options = [
        f"-DPython_EXECUTABLE={sys.executable}",
        f"-DCMAKE_MAKE_PROGRAM={find_tool('ninja', 'BIN_DIR')}",
        # Not those of the build before.
        "-DRING_KERAS_TENSORFLOW_DIRS=",
        "-DRING_KERAS_BUILD_TORCH=OFF",
        "-DRING_KERAS_BUILD_JAX=OFF",
        f"-DRING_KERAS_BUILD_KERNELS={'OFF' if core_only else 'ON'}",
        f"-DRING_KERAS_BUILD_BINDINGS={'OFF' if core_only else 'ON'}",
    ]
    if cpp_tests:  # Otherwise stays as it was.
        options.append("-DRING_KERAS_BUILD_TESTS=ON")
    options += shlex.split(os.environ.get("CMAKE_ARGS", ""))
    run_cmake("-S", str(ROOT_DIR), "-B", str(BUILD_DIR), "-G", "Ninja", *options)


def run_cmake(*arguments: str) -> None:
    command = [find_tool("cmake", "CMAKE_BIN_DIR"), *arguments]
    sys.stdout.flush()
    try:
        subprocess.run(command, check=True)
    except subprocess.CalledProcessError as error:
        raise SystemExit(
            f"ring_keras: `{' '.join(command)}` failed with exit code "
            f"{error.returncode}; its own message is above (pip shows it with -v)."
        ) from None


def find_tool(name: str, directory_name: str) -> str:
    """The tool of the pip package of that name, else the one on PATH.

    A package's own idea of its folder is wrong under pip's build isolation,
    where PATH is right; PATH is wrong if the environment is not activated.
    """
    directories = os.environ.get("PATH", "").split(os.pathsep)
    try:
        package = importlib.import_module(name)
    except ImportError:
        pass
    else:
        directories.insert(0, getattr(package, directory_name))
    path = shutil.which(name, path=os.pathsep.join(directories))
    if path is None:
        raise SystemExit(
            f"ring_keras is built with {name}, which was not found. Run `pip "
            f"install {name}`, or let pip do it by leaving out "
            "--no-build-isolation."
        )
    return path


def job_count() -> int:
    """CMAKE_BUILD_PARALLEL_LEVEL, else one job per processor we may use."""
    asked = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL")
    return int(asked) if asked else len(os.sched_getaffinity(0))


def _libraries_in(directory: Path) -> list[Path]:
    return [path for pattern in LIBRARY_PATTERNS for path in directory.glob(pattern)]
