"""How many rows the record batches of an Arrow IPC file have.

pyarrow says so of a batch whose data it has read. The numbers themselves are in the
header of each, and where those are is in the file's footer: FlatBuffers, see
https://arrow.apache.org/docs/format/Columnar.html#ipc-file-format.
"""

import struct
from typing import Any

__all__ = ["row_counts"]

_MAGIC = b"ARROW1"
_CONTINUATION = 0xFFFFFFFF
# The places of fields in the tables Footer, Message and RecordBatch.
_RECORD_BATCHES, _HEADER, _LENGTH = 3, 2, 0
# Of a block: an offset, the length of the header there, and that of the data.
_BLOCK = struct.Struct("<qi4xq")


def row_counts(source: Any) -> list[int]:
    """Those of all record batches.

    Args:
        source: A file that pyarrow has opened, in which it has found the footer.

    Raises:
        struct.error: If a header is damaged.
    """
    tail = struct.Struct(f"<i{len(_MAGIC)}s")
    end = source.size() - tail.size
    (nbytes, _) = tail.unpack(source.read_at(tail.size, end))
    footer = source.read_at(nbytes, end - nbytes)
    blocks = _field(footer, _table(footer, 0), _RECORD_BATCHES)
    if blocks is None:
        return []
    start = _table(footer, blocks)
    (count,) = struct.unpack_from("<I", footer, start)
    return [
        _rows(source, *_BLOCK.unpack_from(footer, start + 4 + i * _BLOCK.size))
        for i in range(count)
    ]


def _rows(source: Any, offset: int, nbytes: int, _: int) -> int:
    message = source.read_at(nbytes, offset)
    (first,) = struct.unpack_from("<I", message)
    # Files of Arrow before 0.15 have no mark before the length.
    message = message[8 if first == _CONTINUATION else 4 :]
    header = _field(message, _table(message, 0), _HEADER)
    if header is None:
        raise struct.error("a record batch without a header")
    length = _field(message, _table(message, header), _LENGTH)
    return 0 if length is None else int(struct.unpack_from("<q", message, length)[0])


def _table(buffer: bytes, at: int) -> int:
    """What an offset that is stored there points to."""
    return at + int(struct.unpack_from("<I", buffer, at)[0])


def _field(buffer: bytes, table: int, place: int) -> int | None:
    """Where a field of a table is; None if it has its default value."""
    (back,) = struct.unpack_from("<i", buffer, table)
    vtable = table - back
    (nbytes,) = struct.unpack_from("<H", buffer, vtable)
    at = 4 + 2 * place
    if at >= nbytes:
        return None
    (offset,) = struct.unpack_from("<H", buffer, vtable + at)
    return table + offset if offset else None
