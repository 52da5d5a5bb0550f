"""The bill of materials of a wheel, in CycloneDX's format, for `.dist-info/sboms/`.

It lists what is in the wheel and not ours: whose headers are compiled in, what the
compiler adds, and what the page for TensorBoard is bundled with.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import re
import uuid
from collections.abc import Iterator
from pathlib import Path

from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from build_support.release.compiled_headers import IN_TENSORFLOW
from build_support.release.targets import TENSORFLOWS

FRONTEND = Path("ring_keras", "tensorboard", "frontend")

WITH_EXCEPTION = "GPL-3.0-or-later WITH GCC-exception-3.1"


def make_sbom(tree: Path, libraries: Path, version: str, epoch: int) -> str:
    """The bill, which depends on its arguments only.

    Args:
        tree: The source.
        libraries: What the wheel holds of them.
        version: Of ring_keras.
        epoch: The time of the release, in seconds since 1970.
    """
    itself = _component(
        "ring-keras", version, "Apache-2.0", "pypi", kind=ComponentType.FRAMEWORK
    )
    bom = Bom(components=_parts(tree, libraries))
    bom.metadata.component = itself
    bom.metadata.timestamp = datetime.datetime.fromtimestamp(
        epoch, tz=datetime.timezone.utc
    )
    bom.serial_number = uuid.uuid5(
        uuid.NAMESPACE_URL, f"{itself.purl}#{epoch}#{_build_info(libraries)}"
    )
    bom.register_dependency(itself, bom.components)
    text: str = JsonV1Dot6(bom).output_as_string(indent=2)
    return text + "\n"


def _parts(tree: Path, libraries: Path) -> Iterator[Component]:
    yield _component(
        "pybind11", importlib.metadata.version("pybind11"), "BSD-3-Clause", "pypi"
    )
    for version in TENSORFLOWS:
        yield _component("tensorflow", version, "Apache-2.0", "pypi")
    for name, license_id in IN_TENSORFLOW.items():
        yield _component(name, None, license_id, "generic")
    compiler = str(_build_info(libraries)["compiler"]).split()[-1]
    for name in ("libstdc++", "libgcc"):
        yield _component(name, compiler, WITH_EXCEPTION, "generic")
    yield from _of_npm(tree)


def _of_npm(tree: Path) -> Iterator[Component]:
    lock = json.loads((tree / FRONTEND / "package-lock.json").read_text())
    for path, package in sorted(lock["packages"].items()):
        if path and not package.get("dev"):
            name = path.removeprefix("node_modules/")
            yield _component(name, package["version"], package["license"], "npm")
    # What Plotly's bundle has of others: each text begins with the name.
    texts = (tree / FRONTEND / "plotly-licenses.txt").read_text().split("\n----\n\n")
    for text in texts[1:]:
        found = re.match(r"(\S+) (\d\S*)$", text, re.MULTILINE)
        if found is None:
            raise ValueError(f"plotly-licenses.txt: no name and version in {text!r}")
        yield _component(found[1], found[2], None, "npm")


def _component(
    name: str,
    version: str | None,
    license_id: str | None,
    registry: str,
    kind: ComponentType = ComponentType.LIBRARY,
) -> Component:
    namespace, _, last = name.rpartition("/")
    purl = PackageURL(registry, namespace or None, last, version)
    return Component(
        name=name,
        version=version,
        type=kind,
        bom_ref=str(purl),
        licenses=[LicenseExpression(license_id)] if license_id else [],
        purl=purl,
    )


def _build_info(libraries: Path) -> dict[str, str | int]:
    info: dict[str, str | int] = json.loads(
        (libraries / "_build_info.json").read_text()
    )
    return info
