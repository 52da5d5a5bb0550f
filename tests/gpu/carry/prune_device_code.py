"""Empties a library's device code for other GPUs.

`prune_device_code.py LIBRARY ARCHITECTURE`, such as 90 for an H100.

What is left compresses to a quarter. The bytes stay where they are, as zeros: nothing
else in the file has to change.
"""

from __future__ import annotations

import mmap
import struct
import subprocess
import sys
from pathlib import Path

# A container of device code, as `fatbinary` writes it: magic, version, size of the
# header, size of the entries; then entries, each with a header of its own.
_CONTAINER = struct.Struct("<IHHQ")
_MAGIC = 0xBA55ED50
# Kind, version, size of this header, size of what follows; later the architecture.
_ENTRY = struct.Struct("<HHIQ")
_ARCHITECTURE_AT = 28
_MACHINE_CODE = 2


def main(path: str, architecture: int) -> None:
    """Prints how many bytes are left of how many."""
    start, size = _section(path)
    kept = total = 0
    with Path(path).open("r+b") as file, mmap.mmap(file.fileno(), 0) as data:
        at = start
        while at < start + size:
            magic, _, header, length = _CONTAINER.unpack_from(data, at)
            if magic != _MAGIC:
                at += 8  # Containers are aligned.
                continue
            entry, end = at + header, at + header + length
            while entry < end:
                kind, _, skip, nbytes = _ENTRY.unpack_from(data, entry)
                (target,) = struct.unpack_from("<I", data, entry + _ARCHITECTURE_AT)
                total += nbytes
                if (kind, target) == (_MACHINE_CODE, architecture):
                    kept += nbytes
                else:
                    data[entry + skip : entry + skip + nbytes] = bytes(nbytes)
                entry += skip + nbytes
            at = end
    print(f"{path}: {kept} of {total} bytes of device code left")


def _section(path: str) -> tuple[int, int]:
    """Where the device code lies in the file, and how long it is."""
    command = ["readelf", "--section-headers", "--wide", path]
    for line in subprocess.check_output(command, text=True).splitlines():
        _, _, columns = line.partition("] ")
        name, *rest = columns.split() or [""]
        if name == ".nv_fatbin":
            return int(rest[2], 16), int(rest[3], 16)
    raise SystemExit(f"{path} has no section .nv_fatbin: expected a build for CUDA")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
