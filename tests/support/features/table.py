"""Measures features and writes the table in docs/keras.md.

`PYTHONPATH=tests python -m support.features.table [WORD...]` measures the features
whose heading or name contains one of the words, all by default; the others keep
their lines. Nothing is written where a feature is off its limits.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from support.features import Difference, Feature, faults, measure_group, network
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
    """Measures, and writes each line once it is measured."""
    wrong: list[str] = []
    pools = [RankPool(size, network.ENVIRONMENT) for size in SIZES]
    try:
        for group, feature in chosen(words):
            results = [measure(pool, group, feature) for pool in pools]
            bad = [fault for by_rank in results for fault in faults(feature, by_rank)]
            print("\n".join(bad) or f"{group}: {feature.name}", flush=True)
            wrong += bad
            if not bad:
                write(group, feature, [by_rank[0] for by_rank in results])
    finally:
        for pool in pools:
            pool.close()
    return 1 if wrong else 0


def chosen(words: list[str]) -> Iterator[tuple[str, Feature]]:
    """Features with one of the words in them; all if there are no words."""
    for group, features in GROUPS.items():
        for feature in features:
            text = f"{group}/{feature.name}".lower()
            if not words or any(word.lower() in text for word in words):
                yield group, feature


def measure(pool: RankPool, group: str, feature: Feature) -> tuple[Difference, ...]:
    """What each rank found."""
    results = pool.run(measure_group, args=(group, [feature.name]), timeout_s=180)
    return tuple(result[0] for result in results)


def write(group: str, feature: Feature, found: list[Difference]) -> None:
    """Puts one line into the document."""
    cells = [number(value) for one in found for value in (one.weights, one.metrics)]
    text = DOCUMENT.read_text(encoding="utf-8")
    lines = {**read(text), (group, feature.name): cells}
    DOCUMENT.write_text(replaced(text, lines), encoding="utf-8")


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
            lines[group, name] = cells
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
