"""Parquet files, in row groups of several sizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

GROUP = 7


def numbered_table(first: int, last: int) -> pa.Table:
    """Rows that follow from their numbers: `first` to `last` - 1."""
    numbers = np.arange(first, last)
    x = np.random.default_rng(0).normal(size=(1000, 6)).astype(np.float32)[numbers]
    lists = pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), 6)
    return pa.table(
        {
            "number": numbers,
            "x": lists,
            "y": (x.sum(axis=1) > 0).astype(np.float32),
            "text": pa.array([f"row {number} é" for number in numbers], pa.string()),
        }
    )


def write_numbered(directory: Path, counts: list[int]) -> None:
    """As Spark does, a file for each count."""
    directory.mkdir()
    first = 0
    for file, count in enumerate(counts):
        path = directory / f"part-{file:05}.snappy.parquet"
        table = numbered_table(first, first + count)
        pq.write_table(table, path, row_group_size=GROUP)
        first += count
    (directory / "_SUCCESS").touch()
    (directory / ".part-00000.crc").write_bytes(b"crc")
