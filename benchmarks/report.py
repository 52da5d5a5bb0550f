"""Tables: targets and ratios first, then the times."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from benchmarks.cases import Section, Target
from benchmarks.measure import Results

__all__ = ["format_seconds", "quartiles", "ratio", "report", "table"]


def report(section: Section, results: Results) -> str:
    """Everything a section shows, as text."""
    ours = section.rows[0].title
    columns = [column.title for column in section.columns]
    rows = [row.title for row in section.rows]
    parts = [f"## {section.title}"]
    reached = [
        line for target in section.targets for line in _target_lines(target, results)
    ]
    if reached:
        parts.append("Targets: the other's time / ours\n\n" + "\n".join(reached))
    parts.append(
        f"Ratios: each one's time / that of {ours}; above 1 we are faster\n\n"
        + table(
            ["", *columns],
            [
                [row, *(_ratio_cell(results, row, ours, column) for column in columns)]
                for row in rows[1:]
            ],
        )
    )
    if section.ceilings:
        parts.append(
            "Exposed communication: the step's time less that of the same step in "
            "independent processes\n\n"
            + table(
                ["", *columns],
                [
                    [row, *(_exposed_cell(results, row, same, c) for c in columns)]
                    for row, same in section.ceilings.items()
                ],
            )
        )
    parts.append(
        "Times: median of the rounds (quartiles)\n\n"
        + table(
            ["", *columns],
            [
                [row, *(_time_cell(results, row, column) for column in columns)]
                for row in rows
            ],
        )
    )
    return "\n\n".join(parts) + "\n"


def ratio(
    results: Results, others: Sequence[str], ours: str, column: str
) -> tuple[float, str] | None:
    """How often our time goes into that of the fastest of others, and who that is."""
    own = results.median(ours, column)
    times = [(results.median(other, column), other) for other in others]
    measured = [(time, other) for time, other in times if time is not None]
    if own is None or not measured:
        return None
    time, other = min(measured)
    return time / own, other


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """The first and the third; of a single value, itself."""
    if len(values) < 2:
        return values[0], values[0]
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return first, third


def format_seconds(seconds: float) -> str:
    """With three digits, in us or ms.

    >>> format_seconds(4.5e-3)
    '4.50 ms'
    """
    scale = _scale(abs(seconds))
    return f"{_number(seconds, scale)} {'us' if scale == 1e6 else 'ms'}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown, lined up for reading as it is."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        first, *others = zip(cells, widths, strict=True)
        texts = [
            first[0].ljust(first[1]),
            *(cell.rjust(width) for cell, width in others),
        ]
        return f"| {' | '.join(texts)} |"

    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([line(head), rule, *(line(row) for row in rows)])


def _target_lines(target: Target, results: Results) -> Iterator[str]:
    for column in target.columns:
        found = ratio(results, target.others, target.ours, column)
        if found is not None:
            value, other = found
            verdict = "reached" if value >= target.at_least else "MISSED "
            yield (
                f"  {verdict}  {value:6.2f} (target {target.at_least:g})  "
                f"{column}: {target.ours} against {other}"
            )


def _ratio_cell(results: Results, row: str, ours: str, column: str) -> str:
    found = ratio(results, [row], ours, column)
    return "" if found is None else f"{found[0]:.2f}"


def _exposed_cell(results: Results, row: str, ceiling: str, column: str) -> str:
    time, alone = results.median(row, column), results.median(ceiling, column)
    if time is None or alone is None:
        return ""
    return f"{format_seconds(time - alone)} ({(time - alone) / time:.0%})"


def _time_cell(results: Results, row: str, column: str) -> str:
    rounds = results.seconds.get((row, column))
    if not rounds:
        return ""
    median = statistics.median(rounds)
    low, high = (_number(value, _scale(median)) for value in quartiles(rounds))
    return f"{format_seconds(median)} ({low}-{high})"


def _scale(seconds: float) -> float:
    return 1e6 if seconds < 1e-3 else 1e3


def _number(seconds: float, scale: float) -> str:
    value = seconds * scale
    digits = 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return f"{value:,.{digits}f}"
