"""Makes the wheels of libraries that are built already."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from build_support.release.commands import run
from build_support.release.libraries import choose
from build_support.release.sbom import make_sbom
from build_support.release.targets import PLATFORM


def make_wheel(
    tree: Path,
    libraries: Path,
    architecture: str,
    python: str,
    version: str,
    epoch: int,
    work_dir: Path,
) -> Path:
    """A wheel for one Python and one architecture, in a folder of `work_dir`."""
    name = f"cp{python.replace('.', '')}-{architecture}"
    directory = work_dir / name
    shutil.rmtree(directory, ignore_errors=True)
    chosen = choose(libraries, python, directory / "libraries")
    sbom = directory / "ring_keras.cdx.json"
    sbom.write_text(make_sbom(tree, chosen, version, epoch))
    run(
        *(sys.executable, "setup.py", "--quiet"),
        *("build", "--build-base", directory / "build"),
        *("build_ext", "--libraries-from", chosen),
        # Which would build again, and forget where the libraries are.
        *("bdist_wheel", "--skip-build"),
        *("--for-python", python, "--sbom", sbom),
        *("--plat-name", f"{PLATFORM}_{architecture}"),
        *("--dist-dir", directory),
        cwd=tree,
        env={**os.environ, "SOURCE_DATE_EPOCH": str(epoch)},
    )
    (wheel,) = directory.glob("*.whl")
    return wheel
