"""Rows of Parquet files, by row groups. Needs pyarrow."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ring_keras.data.arrow_columns import Column
from ring_keras.data.find_files import FoundFile, find_files

__all__ = ["ParquetFiles"]

_FOOTERS_AT_ONCE = 16


class ParquetFiles:
    """Row groups of files of one schema, of which only the footers are read at first.

    Args:
        paths: See `ring_keras.data.shard_parquet`.
        columns: Those to read; None for all.
        filesystem: See `ring_keras.data.shard_parquet`.

    Raises:
        ValueError: If there are no such files or columns, or the files differ in them.
        OSError: If a file cannot be read.
    """

    def __init__(
        self,
        paths: Sequence[str],
        columns: Sequence[str] | None,
        filesystem: Any,
    ) -> None:
        self._files = find_files(paths, filesystem)
        if not self._files:
            raise ValueError(f"there is no Parquet file at {paths!r}")
        self.names = [file.path for file in self._files]
        with ThreadPoolExecutor(_FOOTERS_AT_ONCE) as threads:
            footers = list(threads.map(_footer, self._files))
        self.columns = self._common_columns(footers, columns)
        groups = [
            (file, group, footer.row_group(group).num_rows)
            for file, footer in enumerate(footers)
            for group in range(footer.num_row_groups)
        ]
        self._groups = np.array(groups, np.int64).reshape(-1, 3)

    @property
    def row_counts(self) -> np.ndarray[Any, Any]:
        """How many rows each row group has, in the order of files; of int64."""
        counts: np.ndarray[Any, Any] = self._groups[:, 2]
        return counts

    def contents(self) -> list[Any]:
        """The same on every rank that sees the same files."""
        columns = [(c.name, c.dtype.name, c.shape) for c in self.columns]
        return [self.names, columns, self._groups.tolist()]

    def read(self, group: int, rows: slice | np.ndarray[Any, Any]) -> list[Any]:
        """Reads some rows of a row group.

        Args:
            group: Its place in `row_counts`.
            rows: Which of its rows.

        Returns:
            An array for each column.

        Raises:
            ValueError: If there are nulls, or the file is another one by now.
        """
        file, place, count = self._groups[group].tolist()
        path = self.names[file]
        names = [column.name for column in self.columns]
        with _opened(self._files[file]) as opened:
            table = opened.read_row_group(place, columns=names)
        if len(table) != count:
            raise ValueError(
                f"{path} has changed: of {count} rows in row group {place} there are "
                f"{len(table)}."
            )
        if isinstance(rows, slice):
            table = table.slice(rows.start, rows.stop - rows.start)
        else:
            table = table.take(pa.array(rows))
        try:
            return [column.values(table[column.name]) for column in self.columns]
        except ValueError as error:
            raise ValueError(f"{path}, row group {place}: {error}.") from None

    def _common_columns(
        self, footers: list[Any], names: Sequence[str] | None
    ) -> tuple[Column, ...]:
        schemas = [footer.schema.to_arrow_schema() for footer in footers]
        if names is None:
            names = schemas[0].names
        for path, schema in zip(self.names, schemas, strict=True):
            for name in names:
                if len(schema.get_all_field_indices(name)) != 1:
                    raise ValueError(
                        f"{path} has no column {name!r}, or several. It has "
                        f"{schema.names}"
                    )
                ours, first = schema.field(name).type, schemas[0].field(name).type
                if ours != first:
                    raise ValueError(
                        f"column {name!r} has the type {first} in {self.names[0]} and "
                        f"{ours} in {path}"
                    )
        if not names:
            raise ValueError(f"no columns were asked of {self.names[0]}")
        try:
            return tuple(Column.of(schemas[0].field(name)) for name in names)
        except ValueError as error:
            raise ValueError(f"{self.names[0]}: {error}.") from None


def _opened(file: FoundFile) -> Any:
    return pq.ParquetFile(file.path, filesystem=file.system, pre_buffer=True)


def _footer(file: FoundFile) -> Any:
    try:
        with _opened(file) as opened:
            return opened.metadata
    except pa.ArrowInvalid as error:
        raise ValueError(f"{file.path} is no Parquet file: {error}") from error
