"""What a release is built for."""

from __future__ import annotations

ARCHITECTURES = ("x86_64", "aarch64")
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
PLATFORM = "manylinux_2_28"

# The last of each minor version: op libraries fit all of them. Pinned, so that a
# release can be built again.
TENSORFLOWS = ("2.16.2", "2.17.1", "2.18.1", "2.19.1", "2.20.0", "2.21.0")

# Of a wheel, so that PyPI's quota and a slow line suffice.
MAX_NBYTES = 15_000_000
