"""Measures features and writes the table in docs/keras.md.

`PYTHONPATH=tests python -m support.features.table [WORD...]` measures the features
whose heading or name contains one of the words, all by default; the others keep
their lines. Nothing is written where a feature is off its limits.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from support.features import Difference, Feature, faults, measure_group
from support.features.groups import GROUPS
from support.rank_pool import RankPool

SIZES = (2, 3)
DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "keras.md"
BEGIN, END = "<!-- measured: begin -->\n", "<!-- measured: end -->"
HEAD = (
    "| | 2 ranks: weights | metrics | 3 ranks: weights | metrics |\n"
    "|---|---|---|---|---|\n"
)
# Of one feature: what its line has behind its name.
Cells = list[str]
Lines = dict[tuple[str, str], Cells]


def main(words: list[str]) -> int:
    """Measures, and writes what was measured."""
    text = DOCUMENT.read_text(encoding="utf-8")
    lines = read(text)
    chosen = [
        (group, feature)
        for group, features in GROUPS.items()
        for feature in features
        if not words
        or any(word.lower() in f"{group}/{feature.name}".lower() for word in words)
    ]
    wrong = []
    cells: Lines = {}
    for size in SIZES:
        pool = RankPool(size)
        try:
            for group, feature in chosen:
                by_rank = measure(pool, group, feature)
                wrong += faults(feature, by_rank)
                found = [number(by_rank[0].weights), number(by_rank[0].metrics)]
                print(f"{size} ranks: {group}/{feature.name}: {found}", flush=True)
                cells.setdefault((group, feature.name), []).extend(found)
        finally:
            pool.close()
    if wrong:
        print("\n".join(wrong), file=sys.stderr)
        return 1
    DOCUMENT.write_text(replaced(text, {**lines, **cells}), encoding="utf-8")
    return 0


def measure(pool: RankPool, group: str, feature: Feature) -> tuple[Difference, ...]:
    """What each rank found."""
    results = pool.run(measure_group, args=(group, [feature.name]), timeout_s=180)
    return tuple(result[0] for result in results)


def number(value: float | None) -> str:
    """As the table has it."""
    if value is None:
        return "-"
    return "0" if value == 0 else f"{value:.0e}"


def table(text: str) -> str:
    """The part of the document that is measured."""
    return text[text.index(BEGIN) + len(BEGIN) : text.index(END)]


def read(text: str) -> Lines:
    """The lines that the document has."""
    lines: Lines = {}
    group = ""
    for line in table(text).splitlines():
        heading = re.fullmatch(r"### (.*)", line)
        if heading:
            group = heading[1]
        elif line.startswith("| ") and not line.startswith("| |"):
            name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
            lines[group, name.strip("`")] = cells
    return lines


def replaced(text: str, lines: Lines) -> str:
    """The document with other lines, in the order of the groups."""
    parts = []
    for group, features in GROUPS.items():
        rows = [
            f"| {feature.name} | {' | '.join(lines[group, feature.name])} |\n"
            for feature in features
            if (group, feature.name) in lines
        ]
        if rows:
            parts.append(f"### {group}\n\n{HEAD}{''.join(rows)}\n")
    start, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    return f"{text[:start]}\n{''.join(parts)}{text[end:]}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
