"""The table, and the same as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ring_keras.autotune.timing import Timing
from ring_keras.benchmark.job import JobDescription

__all__ = ["Row", "header", "write_json"]

_COLUMNS = (
    f"{'size':>12} {'count':>12} {'dtype':>9} {'op':>8} {'time':>11} {'least':>11} "
    f"{'greatest':>11} {'algbw':>8} {'busbw':>8} {'#wrong':>7}"
)
_UNITS = (
    f"{'(B)':>12} {'':>12} {'':>9} {'':>8} {'(us)':>11} {'(us)':>11} "
    f"{'(us)':>11} {'(GB/s)':>8} {'(GB/s)':>8} {'':>7}"
)


@dataclass(frozen=True)
class Row:
    """One size.

    Attributes:
        collective: Its name.
        nbytes: Of the larger of one rank's input and output.
        count: Its elements.
        dtype: Theirs.
        op: How they were reduced; none if they were not.
        buffers: One of `BUFFERS`, or tensors, or gpu.
        timing: See `Timing`.
        bus_factor: See `Collective`.
        wrong: Elements of all ranks that were not what they must be.
    """

    collective: str
    nbytes: int
    count: int
    dtype: str
    op: str
    buffers: str
    timing: Timing
    bus_factor: float
    wrong: int

    @property
    def algorithm_gbps(self) -> float:
        """Bytes of the buffer per second, in 10^9."""
        return self.nbytes / self.timing.median_s / 1e9

    @property
    def bus_gbps(self) -> float:
        """Bytes that the busiest connection carries per second, in 10^9."""
        return self.algorithm_gbps * self.bus_factor

    def line(self) -> str:
        """Its line of the table."""
        times = self.timing
        return (
            f"{self.nbytes:>12} {self.count:>12} {self.dtype:>9} {self.op:>8} "
            f"{_us(times.median_s):>11} {_us(times.least_s):>11} "
            f"{_us(times.greatest_s):>11} {self.algorithm_gbps:>8.3f} "
            f"{self.bus_gbps:>8.3f} {self.wrong:>7}"
        )


def header(title: str, job: JobDescription) -> str:
    """What stands above the rows."""
    lines = [*(f"# {line}" for line in (title, *job.lines())), "#", _COLUMNS, _UNITS]
    return "\n".join(lines)


def write_json(
    path: Path, title: str, job: JobDescription, rows: Sequence[Row]
) -> None:
    """Writes everything that the table says, in base units."""
    content = {
        "title": title,
        "job": dataclasses.asdict(job),
        "rows": [
            dataclasses.asdict(row)
            | {"algorithm_gbps": row.algorithm_gbps, "bus_gbps": row.bus_gbps}
            for row in rows
        ],
    }
    path.write_text(json.dumps(content, indent=2) + "\n")


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.2f}"
