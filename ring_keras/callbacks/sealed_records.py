"""Small records of files, each with its own checksum, and the checksums of files."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["sealed", "sha256", "sha256_of_file", "unsealed"]


def sealed(noted: Mapping[str, Any]) -> bytes:
    """A record's contents, with their own checksum."""
    return json.dumps({**noted, "record_sha256": _seal(noted)}).encode()


def unsealed(content: bytes) -> dict[str, Any]:
    """What was noted.

    Raises:
        ValueError: If it is not what was written.
    """
    try:
        noted = json.loads(content)
    except ValueError:
        noted = None
    if not isinstance(noted, dict) or noted.pop("record_sha256", "") != _seal(noted):
        raise ValueError("its record is not what was written")
    return noted


def _seal(noted: Mapping[str, Any]) -> str:
    return sha256(json.dumps(noted, sort_keys=True).encode())


def sha256(content: bytes | memoryview) -> str:
    """Of what is in memory, in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def sha256_of_file(path: Path) -> str:
    """The same of a file, a piece after the other."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
