"""Ratios and tables of the benchmarks."""

import pytest

from benchmarks.cases import Column, Row, Section, Target
from benchmarks.measure import Results
from benchmarks.program import Program
from benchmarks.report import format_seconds, quartiles, ratio, report, table

NOBODY = Program("nobody", [], lambda job: [])


def results(**seconds: list[float]) -> Results:
    return Results({(row, "4 B"): rounds for row, rounds in seconds.items()})


def test_ratio_is_that_of_the_fastest() -> None:
    measured = results(ours=[2e-6, 1e-6, 9e-6], slow=[8e-6], fast=[3e-6])

    assert ratio(measured, ["slow", "fast"], "ours", "4 B") == (1.5, "fast")


def test_ratio_needs_both() -> None:
    assert ratio(results(ours=[1.0]), ["other"], "ours", "4 B") is None
    assert ratio(results(other=[1.0]), ["other"], "ours", "4 B") is None
    assert ratio(results(), [], "ours", "4 B") is None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (4e-7, "0.40 us"),
        (12.34e-6, "12.3 us"),
        (999e-6, "999 us"),
        (1e-3, "1.00 ms"),
        (1.2345, "1,234 ms"),
        (-2e-3, "-2.00 ms"),
    ],
)
def test_format_seconds(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_quartiles() -> None:
    assert quartiles([7.0]) == (7.0, 7.0)
    assert quartiles([1.0, 2.0, 3.0, 4.0, 5.0]) == (2.0, 4.0)


def test_table_is_lined_up() -> None:
    lines = table(["", "size"], [["a", "1"], ["long name", "2,000"]]).splitlines()

    assert len({len(line) for line in lines}) == 1
    assert lines[2] == "| a         |     1 |"


def test_report() -> None:
    section = Section(
        "Steps",
        2,
        [Row("ours", NOBODY, ""), Row("alone", NOBODY, ""), Row("gone", NOBODY, "")],
        [Column("4 B", "")],
        [
            Target(["4 B"], "ours", ["alone"], 0.7),
            Target(["4 B"], "ours", ["alone"], 0.9),
            Target(["4 B"], "ours", ["gone"], 3),
        ],
        ceilings={"ours": "alone"},
    )

    text = report(section, results(ours=[5e-3, 5e-3], alone=[4e-3, 4e-3]))

    assert "reached    0.80 (target 0.7)  4 B: ours against alone" in text
    assert "MISSED     0.80 (target 0.9)  4 B: ours against alone" in text
    assert "against gone" not in text
    assert "| ours | 1.00 ms (20%) |" in text
    assert "5.00 ms (5.00-5.00)" in text
