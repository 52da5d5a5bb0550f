"""What a release's wheels need beyond what setuptools puts into any."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import ClassVar

from setuptools.command.bdist_wheel import bdist_wheel


class Wheel(bdist_wheel):
    """A wheel for another Python than the one that builds it, with its SBOM."""

    user_options: ClassVar = [
        *bdist_wheel.user_options,
        ("for-python=", None, "as 3.12; the libraries come from --libraries-from"),
        ("sbom=", None, "a file for .dist-info/sboms/ (PEP 770)"),
    ]

    def initialize_options(self) -> None:
        super().initialize_options()
        self.for_python: str | None = None
        self.sbom: str | None = None

    def get_tag(self) -> tuple[str, str, str]:
        implementation, abi, platform = super().get_tag()
        if self.for_python is not None:
            implementation = abi = f"cp{self.for_python.replace('.', '')}"
        return implementation, abi, platform

    def write_wheelfile(self, wheelfile_base: str, *arguments: str) -> None:
        super().write_wheelfile(wheelfile_base, *arguments)
        if self.sbom is not None:
            directory = Path(wheelfile_base) / "sboms"
            directory.mkdir()
            shutil.copy(self.sbom, directory)
