"""Rows of files of tables, by the pieces that they are in. Needs pyarrow."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, ClassVar, Protocol

import numpy as np
import pyarrow as pa

from ring_keras.data.arrow_columns import Column
from ring_keras.data.find_files import FoundFile, find_files

__all__ = ["TableFiles", "TableReader"]

_FOOTERS_AT_ONCE = 16


class TableReader(Protocol):
    """An open file of one format, in pieces that are read whole.

    Raises ValueError where it is made, if the file is none of its format.
    """

    kind: ClassVar[str]
    piece: ClassVar[str]

    def __init__(self, file: FoundFile) -> None: ...

    def close(self) -> None:
        """Closes the file."""

    @property
    def schema(self) -> Any:
        """Of all pieces: a `pyarrow.Schema`."""

    def row_counts(self) -> list[int]:
        """Of each piece."""

    def read(self, piece: int, columns: Sequence[str]) -> Any:
        """Some columns of a piece: a `pyarrow.Table`."""


class TableFiles:
    """Files of one schema, of which only the footers are read at first.

    Args:
        reader: Of their format.
        paths: See `ring_keras.data.shard_parquet`.
        columns: Those to read; None for all.
        filesystem: See `ring_keras.data.shard_parquet`.

    Raises:
        ValueError: If there are no such files or columns, or the files differ in them.
        OSError: If a file cannot be read.
    """

    def __init__(
        self,
        reader: type[TableReader],
        paths: Sequence[str],
        columns: Sequence[str] | None,
        filesystem: Any,
    ) -> None:
        self._reader = reader
        self._files = find_files(paths, filesystem)
        if not self._files:
            raise ValueError(f"there is no {reader.kind} at {paths!r}")
        self.names = [file.path for file in self._files]
        with ThreadPoolExecutor(_FOOTERS_AT_ONCE) as threads:
            footers = list(threads.map(self._footer, self._files))
        schemas, counts = zip(*footers, strict=True)
        self.columns = self._common_columns(schemas, columns)
        pieces = [
            (file, piece, count)
            for file, of_file in enumerate(counts)
            for piece, count in enumerate(of_file)
        ]
        self._pieces = np.array(pieces, np.int64).reshape(-1, 3)

    @property
    def row_counts(self) -> np.ndarray[Any, Any]:
        """How many rows each piece has, in the order of files; of int64."""
        counts: np.ndarray[Any, Any] = self._pieces[:, 2]
        return counts

    def contents(self) -> list[Any]:
        """The same on every rank that sees the same files."""
        columns = [(c.name, c.dtype.name, c.shape) for c in self.columns]
        return [self.names, columns, self._pieces.tolist()]

    def read(self, piece: int, rows: slice | np.ndarray[Any, Any]) -> list[Any]:
        """Reads some rows of a piece.

        Args:
            piece: Its place in `row_counts`.
            rows: Which of its rows.

        Returns:
            An array for each column.

        Raises:
            ValueError: If there are nulls, or the file is another one by now.
        """
        file, place, count = self._pieces[piece].tolist()
        where = f"{self.names[file]}, {self._reader.piece} {place}"
        names = [column.name for column in self.columns]
        with closing(self._reader(self._files[file])) as opened:
            table = opened.read(place, names)
        if len(table) != count:
            raise ValueError(
                f"{where} has changed: of {count} rows there are {len(table)}."
            )
        if isinstance(rows, slice):
            table = table.slice(rows.start, rows.stop - rows.start)
        else:
            table = table.take(pa.array(rows))
        try:
            return [column.values(table[column.name]) for column in self.columns]
        except ValueError as error:
            raise ValueError(f"{where}: {error}.") from None

    def _footer(self, file: FoundFile) -> tuple[Any, list[int]]:
        with closing(self._reader(file)) as opened:
            return opened.schema, opened.row_counts()

    def _common_columns(
        self, schemas: Sequence[Any], names: Sequence[str] | None
    ) -> tuple[Column, ...]:
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
