"""A new build folder compiles the files of a target together, unless told not to."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from build_support.cmake_build import ROOT_DIR, find_tool

# It includes a header that clashes with those of others.
APART = "tf_ops/transport/tcp/tcp_traffic.cc"


def compiled_files(build_dir: Path, *options: str) -> list[str]:
    """What CMake would compile for the rooms of the core, by `options`."""
    command = [
        *(find_tool("cmake", "CMAKE_BIN_DIR"), "-S", str(ROOT_DIR), "-B"),
        *(str(build_dir), "-G", "Ninja"),
        f"-DCMAKE_MAKE_PROGRAM={find_tool('ninja', 'BIN_DIR')}",
        *("-DRING_KERAS_BUILD_KERNELS=OFF", "-DRING_KERAS_BUILD_BINDINGS=OFF"),
    ]
    subprocess.run([*command, *options], check=True, capture_output=True, timeout=120)
    entries = json.loads((build_dir / "compile_commands.json").read_text())
    return [entry["file"] for entry in entries]


def test_new_folder_has_one_unit_for_a_room(tmp_path: Path) -> None:
    files = compiled_files(tmp_path)
    for room in ("collectives", "rendezvous", "runtime"):
        own = [Path(file).name for file in files if f"/tf_ops/{room}/" in file]
        assert own == ["unity_0_cxx.cxx"]
    assert str(ROOT_DIR / APART) in files


def test_folder_remembers_that_files_are_compiled_one_by_one(tmp_path: Path) -> None:
    sources = {str(path) for path in (ROOT_DIR / "tf_ops/runtime").glob("*.cc")}
    assert sources <= set(compiled_files(tmp_path, "-DCMAKE_UNITY_BUILD=OFF"))
    assert sources <= set(compiled_files(tmp_path))
