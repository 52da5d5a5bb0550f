"""What the libraries are compiled against: TensorFlow's wheels and Pythons' headers."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

from build_support.release.commands import ReleaseError, run
from build_support.release.targets import PYTHONS, TENSORFLOWS

# The build for CPUs is half the download; there is none for arm64, where
# `tensorflow` has no CUDA.
DISTRIBUTIONS = {"x86_64": "tensorflow-cpu", "aarch64": "tensorflow"}
# TensorFlow's, the older first.
PLATFORMS = ("manylinux2014", "manylinux_2_17", "manylinux_2_27")


def tensorflow_dirs(architecture: str, cache_dir: Path) -> list[Path]:
    """A folder for each of TENSORFLOWS, with what a build needs of it.

    Downloads what is not there yet: 250 MB each, of which 300 MB of files are left.
    """
    return [_tensorflow(architecture, version, cache_dir) for version in TENSORFLOWS]


def _tensorflow(architecture: str, version: str, cache_dir: Path) -> Path:
    directory = cache_dir / architecture / version
    if directory.exists():
        return directory
    download_dir = cache_dir / "download"
    shutil.rmtree(download_dir, ignore_errors=True)
    run(
        *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"),
        *("--only-binary=:all:", "--python-version=3.11", "--dest", download_dir),
        *(f"--platform={platform}_{architecture}" for platform in PLATFORMS),
        f"{DISTRIBUTIONS[architecture]}=={version}",
    )
    (wheel,) = download_dir.glob("*.whl")
    partial = directory.with_name(f"{version}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(partial, _needed(archive.namelist()))
    shutil.rmtree(download_dir)
    partial.rename(directory)
    return directory


def _needed(names: list[str]) -> Iterator[str]:
    for name in names:
        if (
            name.startswith("tensorflow/include/")
            or name == "tensorflow/libtensorflow_framework.so.2"
            or ".dist-info/" in name
        ):
            yield name


def python_headers() -> dict[str, Path]:
    """The folder with Python.h for each of PYTHONS, of this machine's interpreters.

    They serve the other architecture as well: what pyconfig.h says of a Linux
    with 64 bits differs only in what extension modules do not use.

    Raises:
        ReleaseError: If one is missing.
    """
    return {version: _python_headers(version) for version in PYTHONS}


def _python_headers(version: str) -> Path:
    script = (
        "import sys, sysconfig; print('%d.%d' % sys.version_info[:2]); "
        "print(sysconfig.get_path('include'))"
    )
    for interpreter in _interpreters(version):
        ended = subprocess.run(
            [interpreter, "-c", script], capture_output=True, text=True, timeout=60
        )
        if ended.returncode == 0:
            found, include = ended.stdout.splitlines()
            if found == version and (Path(include) / "Python.h").exists():
                return Path(include)
    raise ReleaseError(
        f"Python {version} with its headers was not found on PATH or among pyenv's. "
        f"Install it: `pyenv install {version}`, or `uv python install {version}`."
    )


def _interpreters(version: str) -> Iterator[Path]:
    on_path = shutil.which(f"python{version}")
    if on_path is not None:
        yield Path(on_path)
    pyenv = Path.home() / ".pyenv" / "versions"
    yield from sorted(pyenv.glob(f"{version}.*/bin/python"), reverse=True)
