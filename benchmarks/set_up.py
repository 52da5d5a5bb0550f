"""How long a fresh clone takes until it trains, and until its C++ tests have run."""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.machine import Load, describe_machine
from benchmarks.steps import run_steps, table

__all__ = ["set_up"]

_ROOT_DIR = Path(__file__).resolve().parent.parent
_TARGETS = ("demo", "test-cpp")
# What may make it quicker than it is for a newcomer, or other than it is.
_LEFT_OUT = ("CMAKE_ARGS", "CMAKE_CXX_COMPILER_LAUNCHER", "MAKEFLAGS", "PYTHONPATH")
_NOTHING_CACHED = {"CCACHE_DISABLE": "1", "PIP_NO_CACHE_DIR": "1"}


def set_up(arguments: Sequence[str]) -> int:
    """Clones what is committed, and makes it with nothing cached.

    Returns:
        The exit code of the target that failed, else 0.
    """
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks setup", description=__doc__
    )
    parser.add_argument(
        "targets", nargs="*", default=_TARGETS, help="one after the other"
    )
    options = parser.parse_args(arguments)
    environment = {k: v for k, v in os.environ.items() if k not in _LEFT_OUT}
    before = Load.now()
    tables = []
    failure = 0
    with tempfile.TemporaryDirectory() as directory:
        clone = Path(directory) / "ring_keras"
        subprocess.run(["git", "clone", "--quiet", _ROOT_DIR, clone], check=True)
        for target in options.targets:
            run = run_steps(["make", target], clone, environment | _NOTHING_CACHED)
            tables.append(table(f"make {target}", run))
            failure = run.exit_code
            if failure:
                break
    after = Load.now()
    print("\n# A fresh clone, with nothing cached\n")
    for name, value in describe_machine().items():
        print(f"{name}: {value}")
    print("", *tables, sep="\n")
    print(
        f"Load before {before.average:.2f}, after {after.average:.2f}; "
        f"{after.stolen_since(before):.1%} of the time went to other machines"
    )
    return failure
