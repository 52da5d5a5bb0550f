"""Which of our files Python enters on a trip, and which docs/trips.md lists."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import ring_keras

_ROOT = f"{Path(ring_keras.__file__).parent}/"
_PAGE = Path(__file__).resolve().parents[2] / "docs" / "trips.md"


class Trip:
    """What this thread enters while `with` lasts.

    Attributes:
        files: In the order in which they are entered first.
    """

    def __init__(self) -> None:
        self.files: list[str] = []

    def __enter__(self) -> Trip:
        sys.setprofile(self._look)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _look(self, frame: FrameType, event: str, _: Any) -> None:
        path, name = frame.f_code.co_filename, frame.f_code.co_name
        # What an import runs is no part of a trip.
        if event == "call" and name != "<module>" and path.startswith(_ROOT):
            file = path.removeprefix(_ROOT)
            if file not in self.files:
                self.files.append(file)


def tables_of(section: str) -> list[list[str]]:
    """The files that each table of this section of the page has."""
    text = _PAGE.read_text().partition(f"\n## {section}\n")[2].split("\n## ")[0]
    tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert tables, f"docs/trips.md has no tables in a section {section!r}"
    return [re.findall(r"^\| `([^`]+)`", table, re.MULTILINE) for table in tables]


def python_tables_of(section: str) -> list[list[str]]:
    """Those of Python's files."""
    tables = tables_of(section)
    return [table for table in tables if all(file.endswith(".py") for file in table)]


def differences(
    entered: Sequence[str], section: str, *, elsewhere: Sequence[str] = ()
) -> list[str]:
    """What to mend in a section of the page; tables are in the order of the trip.

    Args:
        entered: The files of the trip, in order.
        elsewhere: Files that another section lists.
    """
    tables = python_tables_of(section)
    expected = [file for table in tables for file in table]
    own = [file for file in entered if file not in elsewhere]
    found = [f"{file}: entered, not listed" for file in own if file not in expected]
    found += [f"{file}: listed, not entered" for file in expected if file not in own]
    for table in tables:
        in_order = [file for file in own if file in table]
        listed = [file for file in table if file in own]
        if listed != in_order:
            found.append(f"the order is {', '.join(in_order)}")
    return found
