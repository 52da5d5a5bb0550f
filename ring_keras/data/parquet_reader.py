"""A Parquet file, by row groups. Needs pyarrow."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ring_keras.data.find_files import FoundFile

__all__ = ["ParquetReader"]


class ParquetReader:
    """An open file, of which only the footer is read at first.

    Args:
        file: The file.

    Raises:
        ValueError: If it is no Parquet file.
        OSError: If it cannot be read.
    """

    kind = "Parquet file"
    piece = "row group"

    def __init__(self, file: FoundFile) -> None:
        try:
            self._file = pq.ParquetFile(
                file.path, filesystem=file.system, pre_buffer=True
            )
        except pa.ArrowInvalid as error:
            raise ValueError(f"{file.path} is no Parquet file: {error}") from error

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    @property
    def schema(self) -> Any:
        """Of all pieces: a `pyarrow.Schema`."""
        return self._file.metadata.schema.to_arrow_schema()

    def row_counts(self) -> list[int]:
        """Of each piece."""
        footer = self._file.metadata
        return [footer.row_group(i).num_rows for i in range(footer.num_row_groups)]

    def read(self, piece: int, columns: Sequence[str]) -> Any:
        """Some columns of a piece: a `pyarrow.Table`."""
        return self._file.read_row_group(piece, columns=list(columns))
