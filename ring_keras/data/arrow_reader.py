"""An Arrow IPC file (Feather of version 2), by record batches. Needs pyarrow."""

import struct
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from ring_keras.data.arrow_blocks import row_counts
from ring_keras.data.find_files import FoundFile

__all__ = ["ArrowReader"]

_WRITE = "pyarrow.feather.write_feather(table, path)"
# By what other files begin with, or files that have lost their end.
_OTHERS = {
    b"FEA1": f"is Feather of version 1. Write it anew with {_WRITE}",
    b"\xff\xff\xff\xff": "is an Arrow stream, in which record batches cannot be found "
    f"without reading all of it. Write its table as a file, with {_WRITE}",
    b"ARROW1": "is cut off or damaged. Write it anew",
}


class ArrowReader:
    """An open file, of which only the footer is read at first.

    Args:
        file: The file.

    Raises:
        ValueError: If it is no such file, or is damaged.
        OSError: If it cannot be read.
    """

    kind = "Arrow file"
    piece = "record batch"

    def __init__(self, file: FoundFile) -> None:
        self._path = file.path
        self._source = file.system.open_input_file(file.path)
        try:
            self._schema = pa.ipc.open_file(self._source).schema
        except pa.ArrowInvalid as error:
            self._source.seek(0)
            start = self._source.read(max(map(len, _OTHERS)))
            self._source.close()
            others = (what for mark, what in _OTHERS.items() if start.startswith(mark))
            what = next(others, "is no Arrow file")
            raise ValueError(f"{file.path} {what}: {error}") from error

    def close(self) -> None:
        """Closes the file."""
        self._source.close()

    @property
    def schema(self) -> Any:
        """Of all pieces: a `pyarrow.Schema`."""
        return self._schema

    def row_counts(self) -> list[int]:
        """Of each piece."""
        try:
            return row_counts(self._source)
        except struct.error as error:
            raise ValueError(f"{self._path} is damaged: {error}") from error

    def read(self, piece: int, columns: Sequence[str]) -> Any:
        """Some columns of a piece: a `pyarrow.Table`."""
        places = [self._schema.get_field_index(name) for name in columns]
        options = pa.ipc.IpcReadOptions(included_fields=places)
        reader = pa.ipc.open_file(self._source, options=options)
        table = pa.Table.from_batches([reader.get_batch(piece)])
        table.validate(full=True)  # Nothing else looks at what places of data it has.
        return table
