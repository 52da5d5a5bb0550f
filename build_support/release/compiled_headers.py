"""Whose headers are compiled into the op libraries."""

from __future__ import annotations

import re
from pathlib import Path

from build_support.cmake_build import find_tool
from build_support.release.commands import ReleaseError, output_of

__all__ = ["IN_TENSORFLOW", "check_headers"]

# In TensorFlow's wheels, beside its own headers. Eigen, Abseil and protobuf are of
# commits that each TensorFlow picks.
IN_TENSORFLOW = {
    "abseil-cpp": "Apache-2.0",
    "eigen": "MPL-2.0",
    "farmhash": "MIT",
    "highwayhash": "Apache-2.0",
    "ml_dtypes": "Apache-2.0",
    "protobuf": "BSD-3-Clause",
}
# The folders that these and TensorFlow itself have in tensorflow/include/.
KNOWN_FOLDERS = {
    *("Eigen", "absl", "external/farmhash_archive", "external/highwayhash", "google"),
    *("ml_dtypes", "tensorflow", "tsl", "unsupported", "xla"),
}


def check_headers(build_dir: Path) -> None:
    """Compares what the compiler read with what the bills list.

    Raises:
        ReleaseError: If it read a header of something else.
    """
    ninja = find_tool("ninja", "BIN_DIR")
    read = output_of(ninja, "-C", build_dir, "-t", "deps")
    found = {*re.findall(r"/tensorflow/include/(external/[^/\n]+|[^/\n]+)", read)}
    if not found:
        raise ReleaseError(f"{build_dir}: the compiler read no header of TensorFlow's")
    if found - KNOWN_FOLDERS:
        raise ReleaseError(
            f"Headers of {sorted(found - KNOWN_FOLDERS)} are compiled in, which "
            "compiled_headers.py does not know. Add them there, and a licence to "
            "third_party/licenses/."
        )
