"""What must be true of the files of a release before anybody gets them."""

from __future__ import annotations

import json
import re
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from build_support.release.commands import ReleaseError, output_of, run
from build_support.release.targets import MAX_NBYTES, PLATFORM, TENSORFLOWS

# TensorFlow's own, which `import tensorflow` has loaded before ours is.
OF_TENSORFLOW = {"libtensorflow_framework.so.2"}


def check_files(files: Sequence[Path]) -> None:
    """Looks at an sdist and its wheels.

    Raises:
        ReleaseError: If one of them must not be published.
    """
    run(sys.executable, "-m", "twine", "check", "--strict", *files)
    for wheel in files:
        if wheel.suffix == ".whl":
            faults = [*_content(wheel), *_sbom(wheel), *_needs(wheel)]
            if faults:
                raise ReleaseError(f"{wheel.name}: {'; '.join(faults)}")
            print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.2f} MB")


def _content(wheel: Path) -> Iterator[str]:
    if wheel.stat().st_size > MAX_NBYTES:
        yield f"has {wheel.stat().st_size} bytes, more than {MAX_NBYTES}"
    python, architecture = _tag(wheel)
    names = zipfile.ZipFile(wheel).namelist()
    minors = ["_".join(version.split(".")[:2]) for version in TENSORFLOWS]
    expected = {
        f"_native.cpython-{python}-{architecture}-linux-gnu.so",
        "libring_keras_core.so",
        "libring_keras_jax.so",
        *(f"libring_keras_tf_{minor}.so" for minor in minors),
    }
    found = {Path(name).name for name in names if name.endswith(".so")}
    if found != expected:
        yield f"has the libraries {sorted(found)}, not {sorted(expected)}"
    static = {name for name in names if "/tensorboard/static/" in name}
    if not static:
        yield "has no page for TensorBoard"
    licenses = {Path(name).name for name in names if "/licenses/" in name}
    if not licenses >= {"LICENSE", "pybind11.txt"}:
        yield f"has the licences {sorted(licenses)} only"


def _sbom(wheel: Path) -> Iterator[str]:
    archive = zipfile.ZipFile(wheel)
    boms = [name for name in archive.namelist() if ".dist-info/sboms/" in name]
    if len(boms) != 1:
        yield f"has {len(boms)} bills of materials"
    for name in boms:
        validator = JsonStrictValidator(SchemaVersion.V1_6)
        fault = validator.validate_str(archive.read(name).decode())
        if fault is not None:
            yield f"{name} is not CycloneDX 1.6: {fault}"


def _needs(wheel: Path) -> Iterator[str]:
    """What auditwheel says, apart from the library that TensorFlow brings."""
    _, architecture = _tag(wheel)
    report = json.loads(
        output_of(sys.executable, "-m", "auditwheel", "show", "--json", wheel)
    )
    newest = f"{PLATFORM}_{architecture}"
    symbols = re.fullmatch(rf"manylinux_2_(\d+)_{architecture}", report["sym_tag"])
    allowed = int(PLATFORM.rpartition("_")[2])
    if symbols is None or int(symbols[1]) > allowed:
        yield f"needs symbols of {report['sym_tag']}, newer than {newest} has"
    strangers = {*report["external_libs"]} - OF_TENSORFLOW
    if strangers:
        yield f"needs {sorted(strangers)}, which {newest} has not"
    if report["unsupported_isa"]:
        yield "needs instructions that not every processor has"


def _tag(wheel: Path) -> tuple[str, str]:
    """Python's version without a dot, and the architecture."""
    found = re.fullmatch(rf".*-cp(\d+)-cp\1-{PLATFORM}_(\w+)\.whl", wheel.name)
    if found is None:
        raise ReleaseError(f"{wheel.name}: not a name of ours")
    return found[1], found[2]
