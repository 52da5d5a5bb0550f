"""Another checkout of ring_keras, measured in turn with this one."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from benchmarks.cases import Section
from benchmarks.comparison import Change, change_of
from benchmarks.measure import Results
from benchmarks.peers.ring_keras import ARRAYS, TENSORS, of_checkout

__all__ = ["beside", "changes_since"]

_OURS = (ARRAYS, TENSORS)


def beside(section: Section, checkout: Path) -> Section:
    """The section with our rows once more, of another checkout."""
    others = {program.name: of_checkout(program, checkout) for program in _OURS}
    again = [
        dataclasses.replace(
            row, title=_of(row.title, checkout), program=others[row.program.name]
        )
        for row in section.rows
        if row.program.name in others
    ]
    return dataclasses.replace(section, rows=[*section.rows, *again])


def changes_since(
    section: Section, checkout: Path, results: Results
) -> dict[tuple[str, str], Change | None]:
    """By row and column of ours, what moved since the other checkout."""
    changes = {}
    for row in section.rows:
        for column in section.columns:
            before = results.seconds.get((_of(row.title, checkout), column.title))
            after = results.seconds.get((row.title, column.title))
            if before and after:
                changes[row.title, column.title] = change_of(before, after)
    return changes


def _of(title: str, checkout: Path) -> str:
    return f"{title} ({checkout})"
