"""Metadata is in pyproject.toml; the C++ build is in build_support/."""

import sys
from pathlib import Path

from setuptools import setup

# pip does not put the project's folder on the path.
sys.path.insert(0, str(Path(__file__).resolve().parent))

from build_support.board import BuildWithBoard
from build_support.cmake_build import CMakeBuild, CMakeExtension
from build_support.man_page import DATA_FILES, InstallManPage
from build_support.wheel import Wheel

setup(
    ext_modules=[CMakeExtension()],
    cmdclass={
        "bdist_wheel": Wheel,
        "build_ext": CMakeBuild,
        "build_py": BuildWithBoard,
        "install_data": InstallManPage,
    },
    data_files=DATA_FILES,
)
