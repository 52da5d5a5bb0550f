"""A data frame's columns, as Parquet files in a store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F  # noqa: N812

from ring_keras.spark.columns import numbers_of
from ring_keras.spark.store import Store

__all__ = ["WrittenRows", "write_rows"]

_VALIDATES = "ring_keras_validates"
_READERS = 16


@dataclass(frozen=True)
class WrittenRows:
    """Files of a store that have rows of some columns.

    Attributes:
        store: Where they are.
        files: Their names.
        count: How many rows they have.
    """

    store: Store
    files: Sequence[str]
    count: int

    def first(self, columns: Sequence[str]) -> Mapping[str, np.ndarray[Any, Any]]:
        """The first row, of which there must be one, as a batch."""
        for name in self.files:
            with self.store.open(name) as file:
                for batch in pq.ParquetFile(file).iter_batches(1, columns=columns):
                    return {name: np.array(batch[name].to_pylist()) for name in columns}
        raise AssertionError


def write_rows(
    frame: DataFrame,
    columns: Sequence[str],
    validation: str | float | None,
    seed: int,
    store: Store,
    directory: str,
) -> tuple[WrittenRows, WrittenRows]:
    """Writes them, in one pass over the data frame.

    Args:
        frame: Where they are.
        columns: Of numbers, or of arrays or vectors of them.
        validation: The column that says which rows validate, or the share of those
            that do, which are drawn; None: none.
        seed: Draws them.
        store: Where to.
        directory: Within it; what is there is replaced.

    Returns:
        The rows that train, and those that validate.

    Raises:
        ValueError: If this process does not find what Spark has written.
        PySparkException: If a number is null, and what else Spark raises.
    """
    validates = F.lit(False)
    if isinstance(validation, str):
        validates = numbers_of(frame, validation).cast("boolean")
    elif validation is not None:
        validates = F.rand(seed) < validation
    counted = Observation()
    (
        frame.select(
            *(numbers_of(frame, name).alias(name) for name in columns),
            validates.alias(_VALIDATES),
        )
        .observe(counted, F.count(F.lit(1)).alias("rows"))
        .write.partitionBy(_VALIDATES)
        .mode("overwrite")
        .parquet(store.spark_path(directory))
    )
    files = [name for name in store.files(directory) if name.endswith(".parquet")]
    with ThreadPoolExecutor(_READERS) as readers:
        counts = list(readers.map(lambda name: _count(store, name), files))
    written, found = counted.get["rows"], sum(counts)
    if written != found:
        raise ValueError(
            f"Spark has written {written} rows to {store.spark_path(directory)}, and "
            f"the driver finds {found} of them in {store.prefix}/{directory}. A store "
            "must be a directory that the driver and all executors share, or a URL."
        )
    parts = []
    for value in ("false", "true"):
        own = {
            name: count
            for name, count in zip(files, counts, strict=True)
            if f"/{_VALIDATES}={value}/" in name
        }
        parts.append(WrittenRows(store, list(own), sum(own.values())))
    trains, tests = parts
    return trains, tests


def _count(store: Store, name: str) -> int:
    with store.open(name) as file:
        return int(pq.ParquetFile(file).metadata.num_rows)
