"""Compiles all that one architecture's wheels hold: once, for every Python."""

from __future__ import annotations

import json
import shutil
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path

from build_support.cmake_build import find_tool, job_count
from build_support.release.commands import run
from build_support.release.compiled_headers import check_headers


def build_libraries(
    tree: Path,
    architecture: str,
    tensorflows: Sequence[Path],
    pythons: Mapping[str, Path],
    work_dir: Path,
) -> Path:
    """Gives the folder that holds them, stripped."""
    build_dir = work_dir / f"cmake-{architecture}"
    install_dir = work_dir / f"libraries-{architecture}"
    program = find_tool("cmake", "CMAKE_BIN_DIR")
    headers = ";".join(f"{version}={path}" for version, path in pythons.items())
    run(
        *(program, "-S", tree, "-B", build_dir, "-G", "Ninja"),
        f"-DCMAKE_MAKE_PROGRAM={find_tool('ninja', 'BIN_DIR')}",
        f"-DCMAKE_TOOLCHAIN_FILE={tree}/cmake/toolchains/{architecture}.cmake",
        # No path of this machine in what __FILE__ says.
        f"-DCMAKE_CXX_FLAGS={' '.join(_prefix_maps(tree, tensorflows, work_dir))}",
        f"-DPython_EXECUTABLE={sys.executable}",
        f"-DRING_KERAS_PYTHON_HEADERS={headers}",
        f"-DRING_KERAS_TENSORFLOW_DIRS={';'.join(map(str, tensorflows))}",
        "-DRING_KERAS_BUILD_JAX=ON",
        "-DRING_KERAS_MANYLINUX=ON",
    )
    run(program, "--build", build_dir, "--parallel", str(job_count()))
    check_headers(build_dir)
    shutil.rmtree(install_dir, ignore_errors=True)
    run(program, "--install", build_dir, "--prefix", install_dir, "--strip")
    return install_dir


def _prefix_maps(tree: Path, tensorflows: Sequence[Path], work_dir: Path) -> list[str]:
    # Of those that fit, the compiler takes the last.
    site_packages = Path(sysconfig.get_path("purelib"))
    names = {site_packages: "site-packages", work_dir: "build", tree: "."}
    names |= dict.fromkeys(tensorflows, "tensorflow")
    return [f"-ffile-prefix-map={path}={name}" for path, name in names.items()]


def choose(libraries: Path, version: str, directory: Path) -> Path:
    """Puts what a wheel for this Python holds into a new folder."""
    shutil.rmtree(directory, ignore_errors=True)
    tag = f"cpython-{version.replace('.', '')}"
    shutil.copytree(
        libraries,
        directory,
        ignore=lambda _, names: [
            name
            for name in names
            if name.startswith("_native.") and not name.startswith(f"_native.{tag}-")
        ],
    )
    path = directory / "_build_info.json"
    info = {**json.loads(path.read_text()), "python_version": version}
    path.write_text(json.dumps(info, indent=2) + "\n")
    return directory
