"""What is measured: sections of rows and columns, and the targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.program import Program

__all__ = ["Column", "Row", "Section", "Target"]


@dataclass(frozen=True)
class Row:
    """A way to do what the columns ask for.

    Attributes:
        title: As the tables say it.
        program: Who does it.
        words: Put before a column's words, to make the request for the ranks.
        least_nbytes: Where this way is not the same as another.
        alone: Whether rank 0 does it alone, while the other ranks sleep.
        same: Words of a request to make in the end, whose answer must be the same
            on every rank: they worked together.
    """

    title: str
    program: Program
    words: str
    least_nbytes: int = 0
    alone: bool = False
    same: str = ""


@dataclass(frozen=True)
class Column:
    """A size, a list of gradients or a model.

    Attributes:
        title: As the tables say it.
        words: The parameters of the request.
        nbytes: Bytes per rank that are reduced.
    """

    title: str
    words: str
    nbytes: int = 0


@dataclass(frozen=True)
class Target:
    """A ratio to reach: the others' time, divided by ours.

    Attributes:
        columns: Titles of the columns it is for.
        ours: Title of our row.
        others: Titles of rows; the fastest of those measured counts.
        at_least: The ratio.
    """

    columns: Sequence[str]
    ours: str
    others: Sequence[str]
    at_least: float


@dataclass(frozen=True)
class Section:
    """A table.

    Attributes:
        title: What it shows.
        ranks: How many ranks each program has.
        rows: The first is ours, to which the others are compared.
        columns: From left to right.
        targets: Ratios to reach.
        ceilings: Rows of training, and which row has the same without
            communication: the difference is what communication costs.
        round_scale: How many times longer than usual to measure.
    """

    title: str
    ranks: int
    rows: Sequence[Row]
    columns: Sequence[Column]
    targets: Sequence[Target] = ()
    ceilings: Mapping[str, str] = field(default_factory=dict)
    round_scale: float = 1
