"""Compiles the programs in C++."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers.places import ROOT_DIR
from benchmarks.program import ProgramError

__all__ = ["DATA_DIR", "NATIVE_DIR", "compiled"]

NATIVE_DIR = ROOT_DIR / "benchmarks" / "native"
DATA_DIR = ROOT_DIR / "benchmarks" / "data"
_OUTPUT_DIR = ROOT_DIR / "build" / "benchmarks"


def compiled(name: str, flags: Sequence[str] = ()) -> Path:
    """Compiles native/NAME.cc for this very machine, unless it is there already."""
    source = NATIVE_DIR / f"{name}.cc"
    program = _OUTPUT_DIR / name
    newest = max(path.stat().st_mtime for path in (source, NATIVE_DIR / "agent.h"))
    if program.exists() and program.stat().st_mtime > newest:
        return program
    _OUTPUT_DIR.mkdir(parents=True, exist_ok=True)
    command = ["g++", "-std=c++17", "-O3", "-march=native", str(source)]
    command += [*flags, "-o", str(program)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise ProgramError(f"cannot compile {source}:\n{result.stderr[-2000:]}")
    return program
