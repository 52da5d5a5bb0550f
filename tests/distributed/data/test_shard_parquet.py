"""What Parquet files may hold, and where they may be."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from support.object_stores import KINDS

import ring_keras as ring

pa = pytest.importorskip("pyarrow", reason="needs the extra parquet")
pq = pytest.importorskip("pyarrow.parquet")

from support.table_data import numbered_table, write_numbered  # noqa: E402

COUNTS = [23, 0, 40, 7, 1]
TOTAL = sum(COUNTS)


@pytest.fixture
def directory(tmp_path: Path) -> str:
    write_numbered(tmp_path / "data", COUNTS)
    return str(tmp_path / "data")


def numbers_of(dataset):
    return [int(row["number"]) for row in dataset.as_numpy_iterator()]


def places_worker(directory):
    found = {
        "pattern": ring.data.shard_parquet(f"{directory}/part-*.parquet"),
        "list": ring.data.shard_parquet(
            [f"{directory}/part-0000{n}.snappy.parquet" for n in range(5)]
        ),
        "directories": ring.data.shard_parquet([Path(directory), directory]),
        "above": ring.data.shard_parquet(Path(directory).parent),
        "directory's pattern": ring.data.shard_parquet(f"{directory[:-2]}??/*"),
        "file system": ring.data.shard_parquet(
            directory, filesystem=pa.fs.LocalFileSystem()
        ),
        "one": ring.data.shard_parquet(f"{directory}/part-00003.snappy.parquet"),
    }
    return {name: numbers_of(part) for name, part in found.items()}


def test_where_files_are(rank_pool, directory):
    (found,) = rank_pool(1).run(places_worker, args=(directory,))

    assert found.pop("one") == list(range(63, 70))
    for name, numbers in found.items():
        assert numbers == list(range(TOTAL)), name


def rows_worker(path, seed):
    part = ring.data.shard_parquet(path, seed=seed)
    spec = {name: (s.dtype.name, s.shape) for name, s in part.element_spec.items()}
    return spec, list(part.as_numpy_iterator())


@pytest.mark.parametrize("seed", [None, 1])
def test_columns_of_each_type_are_tensors(rank_pool, tmp_path, seed):
    texts = ["", "é", "a" * 1000, "z"]
    lists = [[1, 2], [], [3], [4, 5, 6]]
    flags = [[True], [False, True], [], [True]]
    table = pa.table(
        {
            "int8": pa.array([1, -2, 3, 4], pa.int8()),
            "half": pa.array(np.arange(4, dtype=np.float16)),
            "flag": [True, False, True, True],
            "text": texts,
            "bytes": pa.array([b"\0\xff", b"", b"1", b"2"], pa.large_binary()),
            "kind": pa.array(["a", "b", "a", "c"]).dictionary_encode(),
            "fixed": pa.array([[1.0, 2.0]] * 4, pa.list_(pa.float64(), 2)),
            "names": pa.array([["a", "é"]] * 4, pa.list_(pa.string(), 2)),
            "list": pa.array(lists, pa.list_(pa.int16())),
            "flags": pa.array(flags, pa.large_list(pa.bool_())),
        }
    )
    # The second row group has lists that do not begin with its first value.
    pq.write_table(table, tmp_path / "data.parquet", row_group_size=3)

    ((spec, rows),) = rank_pool(1).run(
        rows_worker, args=(str(tmp_path / "data.parquet"), seed)
    )

    assert spec == {
        "int8": ("int8", ()),
        "half": ("float16", ()),
        "flag": ("bool", ()),
        "text": ("string", ()),
        "bytes": ("string", ()),
        "kind": ("string", ()),
        "fixed": ("float64", (2,)),
        "names": ("string", (2,)),
        "list": ("int16", (None,)),
        "flags": ("bool", (None,)),
    }
    wanted = [
        {name: as_bytes(value) for name, value in row.items()}
        for row in table.to_pylist()
    ]
    found = [
        {name: np.asarray(value).tolist() for name, value in row.items()}
        for row in rows
    ]
    if seed is not None:
        assert found != wanted
    assert sorted(found, key=lambda row: row["int8"]) == sorted(
        wanted, key=lambda row: row["int8"]
    )


def as_bytes(value):
    if isinstance(value, list):
        return [as_bytes(one) for one in value]
    return value.encode() if isinstance(value, str) else value


def refused_worker(path, kwargs):
    with pytest.raises(Exception) as caught:
        list(ring.data.shard_parquet(path, **kwargs))
    return type(caught.value).__name__, str(caught.value)


@pytest.mark.parametrize(
    ("columns", "kwargs", "error", "message"),
    [
        ({"a": [1, None]}, {}, "InvalidArgumentError", "column 'a' has 1 nulls"),
        ({"a": [[1], [None]]}, {}, "InvalidArgumentError", "column 'a' has 1 nulls"),
        ({"a": [[[1]]]}, {}, "ValueError", "there are no tensors"),
        ({"a": [{"b": 1}]}, {}, "ValueError", "column 'a' has values of the type str"),
        ({"a": [1, 2]}, {"columns": ["b"]}, "ValueError", "no column 'b'"),
        ({"a": [1, 2]}, {"columns": []}, "ValueError", "no columns"),
        ({"a": []}, {}, "ValueError", "column 'a' has values of the type null"),
        ({"a": np.zeros(0)}, {}, "ValueError", "with 0 rows"),
        ({"a": [1]}, {"remainder": "pad"}, "ValueError", "'drop' or 'keep'"),
        ({"a": [1]}, {"resume": ring.data.Resume()}, "ValueError", "takes a seed"),
        (None, {}, "ValueError", "is no Parquet file"),
    ],
)
def test_what_cannot_be_read_is_refused(
    rank_pool, tmp_path, columns, kwargs, error, message
):
    path = tmp_path / "data.parquet"
    if columns is None:
        path.write_bytes(b"PAR1 and so on")
    else:
        pq.write_table(pa.table(columns), path)

    ((kind, said),) = rank_pool(1).run(refused_worker, args=(str(path), kwargs))

    assert kind == error
    assert message in said
    if not kwargs or "columns" in kwargs:
        assert str(path) in said


def test_patterns_across_directories_are_refused(rank_pool, tmp_path):
    arguments = f"{tmp_path}/**/*.parquet", {}

    ((kind, said),) = rank_pool(1).run(refused_worker, args=arguments)

    assert kind == "ValueError"
    assert "`**` is not known here" in said


def test_files_that_do_not_go_together_are_refused(rank_pool, tmp_path):
    for name, values in (("1.parquet", [1]), ("2.parquet", [1.0])):
        pq.write_table(pa.table({"a": values}), tmp_path / name)

    ((kind, said),) = rank_pool(1).run(refused_worker, args=(str(tmp_path), {}))

    assert kind == "ValueError"
    assert "column 'a' has the type int64" in said
    assert "and double in" in said


def different_worker(directory):
    """What each rank is told: other files, other seeds, none at one."""
    rank = ring.rank()
    one = f"{directory}/part-00000.snappy.parquet"
    wrong = [
        ([directory, one][rank], {}),
        (directory, {"seed": rank}),
        (directory, {"columns": ["number", "y"][: rank + 1]}),
        ([directory, f"{directory}/nothing"][rank], {}),
    ]
    told = [refused_worker(path, kwargs) for path, kwargs in wrong]
    told.append(refused_worker(f"{directory}/nothing", {}))
    return told, numbers_of(ring.data.shard_parquet(one))


def test_ranks_that_see_different_files_are_told_alike(rank_pool, directory):
    first, second = rank_pool(2).run(different_worker, args=(directory,))

    assert first[0] == second[0]
    *differ, nothing = first[0]
    assert all(kind == "RankMismatchError" for kind, _ in differ)
    assert f"rank 0 has 5 files with {TOTAL} rows" in differ[0][1]
    assert "rank 1 has 1 files with 23 rows" in differ[0][1]
    assert "seed=1" in differ[1][1]
    assert "failed on rank 1: ValueError: there is no Parquet file" in differ[3][1]
    assert nothing[0] == "ValueError"
    assert first[1] + second[1] == list(range(22))


def changed_worker(path):
    part = ring.data.shard_parquet(path)
    pq.write_table(numbered_table(0, 3), path)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="has changed: of 5 rows there are 3"
    ):
        list(part)


def test_a_file_that_changes_is_told(rank_pool, tmp_path):
    path = tmp_path / "data.parquet"
    pq.write_table(numbered_table(0, 5), path)

    rank_pool(1).run(changed_worker, args=(str(path),))


def remote_worker(address, seed):
    if ring.rank() == 0:
        files = KINDS["s3"].file_system(address)
        files.mkdir("rows")
        for number, (first, last) in enumerate([(0, 20), (20, 31)]):
            with files.open(f"rows/data set/part-{number}.parquet", "wb") as file:
                pq.write_table(numbered_table(first, last), file, row_group_size=7)
        files.touch("rows/data set/_SUCCESS")
    ring.barrier(name="written")
    KINDS["s3"].file_system(address)
    kwargs = {"seed": seed, "remainder": "keep"}
    directory = ring.data.shard_parquet("s3://rows/data set", **kwargs)
    pattern = ring.data.shard_parquet("s3://rows/data*/part-?.parquet", **kwargs)
    kind, said = refused_worker("s3://no-such-bucket/data", {})
    return numbers_of(directory), numbers_of(pattern), kind, said


@pytest.mark.slow
def test_files_in_an_object_store(rank_pool):
    if missing := KINDS["s3"].missing():
        pytest.skip(f"needs the extra test-remote: there is no {missing}")
    with KINDS["s3"].served() as (address, _):
        results = rank_pool(2).run(remote_worker, args=(address, 1))

    for numbers in zip(*(result[:2] for result in results), strict=True):
        assert sorted(itertools.chain(*numbers)) == list(range(31))
    assert results[0][2:] == results[1][2:]
