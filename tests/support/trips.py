"""Which of our files Python enters on a trip, and which docs/trips.md lists."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
_PACKAGE = f"{_ROOT / 'ring_keras'}/"
_PAGE = _ROOT / "docs" / "trips.md"
_NOTES = "TESTS_NOTE_TRIPS"


class Trip:
    """What this thread enters while `with` lasts.

    Args:
        note: A file that gets each as soon as it is entered.

    Attributes:
        files: In the order in which they are entered first.
    """

    def __init__(self, note: Path | None = None) -> None:
        self.files: list[str] = []
        self._note = note

    def __enter__(self) -> Trip:
        sys.setprofile(self._look)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _look(self, frame: FrameType, event: str, _: Any) -> None:
        path = frame.f_code.co_filename
        if event != "call" or not path.startswith(_PACKAGE):
            return
        file = path.removeprefix(_PACKAGE)
        if file in self.files or _is_import(frame):
            return
        self.files.append(file)
        if self._note is not None:
            with self._note.open("a") as note:
                note.write(f"{file}\n")


def _is_import(frame: FrameType | None) -> bool:
    """Whether this runs because a module is imported: that is no part of a trip."""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


class TripsOfPrograms:
    """What programs of Python enter, in any process below that has this environment.

    Args:
        directory: Where they note it.
        programs: Which are traced, with the processes that they fork: the name of a
            module that is run by `python -m`, or that of a script.
    """

    def __init__(self, directory: Path, *programs: str) -> None:
        self._directory = directory
        self._programs = programs
        (directory / "sitecustomize.py").write_text(
            "from support import trips\ntrips.note_trip_of_this_program()\n"
        )

    @property
    def env(self) -> dict[str, str]:
        """On top of what they would have."""
        paths = [str(self._directory), str(_ROOT / "tests"), str(_ROOT)]
        return {
            _NOTES: ":".join([str(self._directory), *self._programs]),
            "PYTHONPATH": ":".join(paths),
        }

    def files_of(self, program: str) -> list[str]:
        """In the order in which one of its processes entered them first."""
        return list(dict.fromkeys(self.noted_of(program).read_text().splitlines()))

    def noted_of(self, program: str) -> Path:
        """Where its processes note what they enter."""
        return self._directory / f"{program}.trip"


def note_trip_of_this_program(env: Mapping[str, str] = os.environ) -> None:
    """If it is one of TripsOfPrograms."""
    directory, *programs = env[_NOTES].split(":")
    for word in sys.orig_argv:
        if (program := Path(word).name) in programs:
            Trip(Path(directory) / f"{program}.trip").__enter__()


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
    entered: Sequence[str],
    tables: Sequence[Sequence[str]],
    *,
    elsewhere: Sequence[str] = (),
) -> list[str]:
    """What to mend in tables of the page, which are in the order of the trip.

    Args:
        entered: The files of the trip, in order.
        tables: What is listed of it.
        elsewhere: Files that other tables list.
    """
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
