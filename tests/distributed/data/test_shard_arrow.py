"""What Arrow IPC files may hold, and what is none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import ring_keras as ring

pa = pytest.importorskip("pyarrow", reason="needs the extra parquet")
feather = pytest.importorskip("pyarrow.feather")

from support.table_data import numbered_table, write_arrow  # noqa: E402


def rows_worker(path, columns):
    part = ring.data.shard_arrow(path, columns=columns, seed=1)
    return list(part.as_numpy_iterator())


@pytest.mark.parametrize("compression", ["uncompressed", "lz4", "zstd"])
@pytest.mark.parametrize("columns", [None, ["y", "text"]])
def test_compressed_or_not(rank_pool, tmp_path, compression, columns):
    table = numbered_table(0, 20)
    path = str(tmp_path / "data.feather")
    feather.write_feather(table, path, compression=compression, chunksize=7)

    (rows,) = rank_pool(1).run(rows_worker, args=(path, columns))

    names = columns or table.schema.names
    wanted = {row["text"].encode(): row for row in table.select(names).to_pylist()}
    assert [row["text"] for row in rows] != list(wanted)
    assert {row["text"] for row in rows} == set(wanted)
    for row in rows:
        assert list(row) == names
        for name in set(names) - {"text"}:
            np.testing.assert_array_equal(row[name], wanted[row["text"]][name])


def test_strings_in_dictionaries(rank_pool, tmp_path):
    words = ["a", "b", "a", "é" * 20]
    table = pa.table({"kind": pa.array(words).dictionary_encode(), "number": range(4)})
    path = tmp_path / "data.arrow"
    write_arrow(table, path, rows=3)

    (rows,) = rank_pool(1).run(rows_worker, args=(str(path), None))

    assert {row["number"]: row["kind"] for row in rows} == {
        number: word.encode() for number, word in enumerate(words)
    }


def stream(path: Path) -> None:
    table = numbered_table(0, 20)
    with pa.ipc.new_stream(str(path), table.schema) as writer:
        writer.write_table(table)


def cut_off(path: Path) -> None:
    write_arrow(numbered_table(0, 20), path)
    path.write_bytes(path.read_bytes()[:-100])


def damaged_header(path: Path) -> None:
    """What says where the number of rows is lies outside the header."""
    write_arrow(numbered_table(0, 20), path, rows=20)
    content = bytearray(path.read_bytes())
    with pa.OSFile(str(path)) as file:
        schema = pa.ipc.open_file(file).schema
    header = len(b"ARROW1\0\0") + len(schema.serialize()) + 8
    content[header : header + 4] = b"\xff\xff\xff\x7f"
    path.write_bytes(content)


MADE = {
    "an Arrow stream": stream,
    "is cut off or damaged": cut_off,
    "data.arrow is damaged": damaged_header,
    "is Feather of version 1. Write it anew with": lambda path: path.write_bytes(
        b"FEA1 and so on FEA1"
    ),
    "is no Arrow file": lambda path: path.write_bytes(b"PAR1 and so on"),
}


def refused_worker(path):
    with pytest.raises(ValueError) as caught:
        ring.data.shard_arrow(path)
    return str(caught.value)


@pytest.mark.parametrize("told", MADE)
def test_other_files_are_refused(rank_pool, tmp_path, told):
    path = tmp_path / "data.arrow"
    MADE[told](path)

    first, second = rank_pool(2).run(refused_worker, args=(str(path),))

    assert first == second
    assert told in first
    assert str(path) in first


def damaged_rows_worker(path):
    """Read without a look at it, such a string would be somewhere in memory."""
    part = ring.data.shard_arrow(path)
    with pytest.raises(tf.errors.InvalidArgumentError, match="offset"):
        list(part)


def test_a_string_that_is_nowhere_is_an_error(rank_pool, tmp_path):
    path = tmp_path / "data.arrow"
    table = pa.table({"text": ["a" * 1003, "b" * 1002]})
    feather.write_feather(table, str(path), compression="uncompressed")
    content = path.read_bytes()
    ends = np.array([1003, 2005], np.int32)
    good, bad = ends.tobytes(), (2**20 * ends).tobytes()
    assert content.count(good) == 1
    path.write_bytes(content.replace(good, bad))

    rank_pool(1).run(damaged_rows_worker, args=(str(path),))
