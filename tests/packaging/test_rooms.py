"""The rooms of tf_ops/ include each other in one direction only."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT_DIR = Path(__file__).resolve().parent.parent.parent

# What a room may include besides itself.
ALLOWED = {
    "common": set(),
    "rendezvous": {"common"},
    "transport": {"common"},
    "reduce": {"common"},
    "cuda": {"common"},
    "collectives": {"common", "transport", "reduce", "cuda"},
    "runtime": {
        "common",
        "rendezvous",
        "transport",
        "reduce",
        "cuda",
        "collectives",
    },
}
# These two see what the core exports: the runtime, what a request is made of, the
# store's server, devices.
ALLOWED["kernels"] = ALLOWED["bindings"] = {
    "collectives",
    "common",
    "cuda",
    "reduce",
    "rendezvous",
    "runtime",
}

# Outside headers, by how their paths begin, and the one room that has them.
OWNERS = {
    "Eigen": "kernels",
    "absl": "kernels",
    "tensorflow": "kernels",
    "tsl": "kernels",
    "unsupported": "kernels",
    "xla": "kernels",
    "pybind11": "bindings",
    "Python.h": "bindings",
}

INCLUDE = re.compile(r'^\s*#\s*include\s+[<"]([^>"]+)[>"]', re.MULTILINE)


def includes_of(room: str) -> Iterator[tuple[str, str]]:
    """Each file of the room with each path that it includes."""
    for path in sorted((ROOT_DIR / "tf_ops" / room).rglob("*")):
        if path.suffix in {".h", ".cc", ".inc"}:
            for included in INCLUDE.findall(path.read_text()):
                yield str(path.relative_to(ROOT_DIR)), included


def test_every_room_is_listed() -> None:
    rooms = {p.name for p in (ROOT_DIR / "tf_ops").iterdir() if p.is_dir()}
    assert rooms == set(ALLOWED)


@pytest.mark.parametrize("room", ALLOWED)
def test_includes_only_rooms_below(room: str) -> None:
    strays = []
    for file, included in includes_of(room):
        parts = included.split("/")
        if parts[0] == "tf_ops" and parts[1] not in ALLOWED[room] | {room}:
            strays.append(f"{file} includes {included}")
    assert not strays


@pytest.mark.parametrize("room", ALLOWED)
def test_includes_outside_headers_only_where_they_belong(room: str) -> None:
    strays = []
    for file, included in includes_of(room):
        if OWNERS.get(included.split("/")[0], room) != room:
            strays.append(f"{file} includes {included}")
    assert not strays
