"""What `make release` relies on: its tag, its sdist, its old symbols, its wheels."""

from __future__ import annotations

import hashlib
import io
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import ring_keras
from build_support.cmake_build import BUILD_DIR
from build_support.manylinux import link_stubs
from build_support.release import source
from build_support.release.commands import ReleaseError
from build_support.release.compiled_headers import check_headers

ROOT_DIR = Path(__file__).resolve().parent.parent.parent
PACKAGE_DIR = Path(ring_keras.__file__).resolve().parent

# These link to what brings its own, TensorFlow and Python.
_NOT_OF_THE_CORE = ("bindings", "kernels", "torch")

# Of old_symbols_user.cc.
FUNCTIONS_OF_OLD_SYMBOLS = ("ExceptionPointers", "Streams", "WaitsUntil")

CHANGELOG = """# Changelog

## [Unreleased]

## [1.2.0] - 2026-01-31

### Added

- A thing.

## [1.1.0] - 2026-01-01
"""


def test_tag_has_its_version_and_its_section() -> None:
    source.check_version("v1.2.0", "1.2.0", '__version__ = "1.2.0"\n')
    source.check_changelog("v1.2.0", "1.2.0", CHANGELOG)


@pytest.mark.parametrize("version", ["1.1.0", "1.3.0", "1.2"])
def test_section_that_is_missing_or_empty_is_refused(version: str) -> None:
    with pytest.raises(ReleaseError, match=re.escape(f"## [{version}] - <date>")):
        source.check_changelog(f"v{version}", version, CHANGELOG)


def test_other_version_is_refused() -> None:
    with pytest.raises(ReleaseError, match=r"says 1\.2\.1, not 1\.2\.0"):
        source.check_version("v1.2.0", "1.2.0", '__version__ = "1.2.1"\n')


@pytest.mark.parametrize("tag", ["1.2.0", "v1.2", "v1.2.0rc1"])
def test_other_tag_is_refused(tag: str) -> None:
    with pytest.raises(ReleaseError, match="not '"):
        source.version_of(tag)


def test_sdist_does_not_tell_when_and_by_whom_it_was_packed(tmp_path: Path) -> None:
    digests = set()
    for uid, names in ((1, ["a", "b"]), (2, ["b", "a"])):
        packed = tmp_path / f"{uid}.tar.gz"
        with tarfile.open(packed, "w:gz") as archive:
            for name in names:
                member = tarfile.TarInfo(name)
                member.uid, member.mtime, member.size = uid, 1_000_000 * uid, 4
                archive.addfile(member, io.BytesIO(b"text"))
        again = tmp_path / f"{uid}-again.tar.gz"
        source._repack(packed, again, epoch=1_700_000_000)
        digests.add(hashlib.sha256(again.read_bytes()).hexdigest())
        with tarfile.open(again) as archive:
            assert [member.name for member in archive] == ["a", "b"]
            text = archive.extractfile("b")
            assert text is not None and text.read() == b"text"
    assert len(digests) == 1


def test_linked_against_stubs_a_library_wants_old_symbols(tmp_path: Path) -> None:
    """Symbols that got newer versions in 2.34; and one that is in none of 2.28."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++")
    stubs = tmp_path / "stubs"
    link_stubs.main(stubs, compiler)
    program = tmp_path / "program.cc"
    program.write_text(
        "#include <dlfcn.h>\n#include <pthread.h>\n#include <sstream>\n"
        "void* a() { return dlsym(nullptr, std::string(40, 'x').c_str()); }\n"
        "int b(pthread_t* t) { return pthread_create(t, nullptr, nullptr, nullptr); }\n"
    )
    library = tmp_path / "library.so"
    link = [compiler, "-shared", "-fPIC", f"-L{stubs}", "-Wl,--no-undefined"]
    subprocess.run([*link, "-o", library, program], check=True, timeout=60)
    listing = subprocess.run(
        ["readelf", "-W", "--dyn-syms", library],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout
    wanted = dict(re.findall(r"UND (\w+)@((?:GLIBC|CXX)\w*_[\d.]+)", listing))
    assert {"dlsym", "pthread_create"} <= wanted.keys()
    assert all(map(link_stubs.is_old, wanted.values())), wanted

    program.write_text("#include <unistd.h>\nint a() { return gettid(); }\n")
    refused = subprocess.run(
        [*link, "-o", library, program], capture_output=True, text=True, timeout=60
    )
    assert refused.returncode != 0
    assert "undefined reference to `gettid'" in refused.stderr


@pytest.mark.slow
@pytest.mark.parametrize("without", ["", "pthread_cond_clockwait"])
def test_what_old_libraries_lack_works(tmp_path: Path, without: str) -> None:
    """Linked as a release is; and as if this machine's glibc were older than 2.30."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++")
    stubs = tmp_path / "stubs"
    link_stubs.main(stubs, compiler)
    shim = tmp_path / "old_symbols.cc"
    text = (ROOT_DIR / "build_support" / "manylinux" / "old_symbols.cc").read_text()
    if without:
        assert f'"{without}"' in text
        text = text.replace(f'"{without}"', '"ring_keras_no_such_function"')
    shim.write_text(text)
    compile_it = [compiler, "-std=c++20", "-Os", "-fPIC"]
    archive = tmp_path / "libold_symbols.a"
    library = tmp_path / "library.so"
    for command in (
        [*compile_it, "-ffunction-sections", "-c", "-o", tmp_path / "shim.o", shim],
        ["ar", "qc", archive, tmp_path / "shim.o"],
        [
            *(*compile_it, "-shared", "-o", library),
            *(Path(__file__).with_name("old_symbols_user.cc"), archive, f"-L{stubs}"),
            *("-Wl,--no-undefined", "-Wl,--gc-sections"),
            *("-Wl,--exclude-libs,libold_symbols.a",),
        ],
    ):
        subprocess.run(command, check=True, timeout=100)
    script = (
        "import ctypes, sys; library = ctypes.CDLL(sys.argv[1]); "
        "print(*(getattr(library, n)() for n in sys.argv[2:]))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script, library, *FUNCTIONS_OF_OLD_SYMBOLS],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ended.returncode, ended.stdout) == (0, "0 0 0\n"), ended.stderr


def test_core_needs_nothing_that_old_libraries_lack(tmp_path: Path) -> None:
    """Links it once more, as a release does."""
    compiler = shutil.which("g++")
    cores = sorted((BUILD_DIR / "tf_ops").glob("*/lib*.a"))
    archives = [one for one in cores if one.parent.name not in _NOT_OF_THE_CORE]
    if compiler is None or not archives:
        pytest.skip("needs g++, and the build folder")
    stubs = tmp_path / "stubs"
    link_stubs.main(stubs, compiler)
    shim = ROOT_DIR / "build_support" / "manylinux" / "old_symbols.cc"
    linked = subprocess.run(
        [
            *(compiler, "-std=c++20", "-fPIC", "-shared", f"-L{stubs}"),
            *("-o", tmp_path / "core.so", shim),
            *("-Wl,--whole-archive", *archives, "-Wl,--no-whole-archive"),
            *(stubs / f"lib{name}.so" for name in ("dl", "pthread", "rt")),
            "-Wl,--no-undefined",
        ],
        capture_output=True,
        text=True,
        timeout=100,
    )
    lacks = set(re.findall(r"undefined reference to `(.*)'", linked.stderr))
    assert not lacks, f"glibc 2.28 and the libstdc++ of GCC 8 lack {lacks}"
    assert linked.returncode == 0, linked.stderr


def test_bills_list_what_is_compiled_in() -> None:
    if not (BUILD_DIR / ".ninja_deps").exists():
        pytest.skip("needs the folder in which the libraries were compiled")
    check_headers(BUILD_DIR)


@pytest.mark.slow
def test_wheel_for_another_python_and_machine(tmp_path: Path) -> None:
    """Of libraries that are there already, twice: the same bytes."""
    tree = tmp_path / "tree"
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    for path in (*PACKAGE_DIR.glob("*.so"), PACKAGE_DIR / "_build_info.json"):
        shutil.copy(path, libraries)
    sbom = tmp_path / "ring_keras.cdx.json"
    sbom.write_text("{}")
    wheels = []
    for name in ("one", "two"):
        shutil.copytree(
            ROOT_DIR,
            tree,
            ignore=shutil.ignore_patterns(
                *("build", "dist", ".*", "*.egg-info", "*.so", "_build_info.json"),
                *("__pycache__", "tests", "docs", "frontend", "benchmarks"),
            ),
        )
        subprocess.run(
            [
                *(sys.executable, "setup.py", "--quiet"),
                *("build", "build_ext", "--libraries-from", libraries),
                *("bdist_wheel", "--skip-build"),
                *("--for-python", "3.12", "--sbom", sbom),
                *("--plat-name", "manylinux_2_28_aarch64"),
                *("--dist-dir", tmp_path / name),
            ],
            cwd=tree,
            env={"PATH": "/usr/bin:/bin", "SOURCE_DATE_EPOCH": "1700000000"},
            check=True,
            timeout=120,
        )
        shutil.rmtree(tree)
        (wheel,) = (tmp_path / name).iterdir()
        wheels.append(wheel)
    assert wheels[0].name.endswith("-cp312-cp312-manylinux_2_28_aarch64.whl")
    assert wheels[0].read_bytes() == wheels[1].read_bytes()
    archive = zipfile.ZipFile(wheels[0])
    names = archive.namelist()
    (bom,) = (name for name in names if ".dist-info/sboms/" in name)
    assert archive.read(bom) == b"{}"
    assert {Path(name).name for name in names if name.endswith(".so")} == {
        path.name for path in libraries.glob("*.so")
    }
    assert any(name.endswith("/licenses/pybind11.txt") for name in names) or any(
        name.endswith("/licenses/third_party/licenses/pybind11.txt") for name in names
    )
