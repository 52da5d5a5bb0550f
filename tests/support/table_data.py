"""Files of tables, in pieces of several sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq

PIECE = 7


def write_parquet(table: pa.Table, path: str | Path, rows: int = PIECE) -> None:
    """With so many rows in a row group."""
    pq.write_table(table, path, row_group_size=rows)


def write_arrow(table: pa.Table, path: str | Path, rows: int = PIECE) -> None:
    """With so many rows in a record batch."""
    feather.write_feather(table, str(path), chunksize=rows)


WRITERS = {"parquet": write_parquet, "arrow": write_arrow}


def shard_function(kind: str) -> Any:
    """That of `ring.data` for the files of one of WRITERS."""
    import ring_keras as ring

    return getattr(ring.data, f"shard_{kind}")


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


def write_numbered(directory: Path, counts: list[int], kind: str = "parquet") -> None:
    """As Spark does, a file for each count."""
    directory.mkdir()
    first = 0
    for file, count in enumerate(counts):
        path = directory / f"part-{file:05}.snappy.{kind}"
        WRITERS[kind](numbered_table(first, first + count), path)
        first += count
    (directory / "_SUCCESS").touch()
    (directory / ".part-00000.crc").write_bytes(b"crc")
