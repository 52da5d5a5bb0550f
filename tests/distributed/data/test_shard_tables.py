"""Each row of files of tables goes to one rank, in an order that all share."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="needs the extra parquet")

from support.table_data import (
    PIECE,
    WRITERS,
    shard_function,
    write_numbered,
)

KINDS = pytest.mark.parametrize("kind", WRITERS)
SIZES = [
    pytest.param(1, marks=pytest.mark.slow),
    2,
    pytest.param(3, marks=pytest.mark.slow),
    pytest.param(4, marks=pytest.mark.slow),
]
# One file is empty; the last piece of most is short.
COUNTS = [23, 0, 40, 7, 1]
TOTAL = sum(COUNTS)


@pytest.fixture
def directory(tmp_path: Path, kind: str) -> str:
    write_numbered(tmp_path / "data", COUNTS, kind)
    return str(tmp_path / "data")


def numbers_of(dataset):
    return [int(row["number"]) for row in dataset.as_numpy_iterator()]


def epochs_worker(kind, directory, seed, remainder):
    part = shard_function(kind)(
        directory, columns=["number"], seed=seed, remainder=remainder
    )
    return int(part.cardinality()), [numbers_of(part) for _ in range(2)]


@KINDS
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("seed", [None, 5, -5])
@pytest.mark.parametrize("remainder", ["drop", "keep"])
def test_every_row_is_on_one_rank(rank_pool, kind, directory, size, seed, remainder):
    results = rank_pool(size).run(
        epochs_worker, args=(kind, directory, seed, remainder)
    )

    orders = []
    for epoch in (0, 1):
        parts = [epochs[epoch] for _, epochs in results]
        assert [len(part) for part in parts] == [count for count, _ in results]
        order = list(itertools.chain(*parts))
        assert len(set(order)) == len(order)
        if remainder == "keep":
            assert sorted(order) == list(range(TOTAL))
            assert max(map(len, parts)) - min(map(len, parts)) <= 1
        else:
            assert {len(part) for part in parts} == {TOTAL // size}
        orders.append(order)
    if seed is None:
        assert orders[0] == orders[1] == list(range(len(orders[0])))
    else:
        assert orders[0] != orders[1]
        assert sorted(orders[0]) != orders[0]


@KINDS
def test_another_seed_is_another_order(rank_pool, kind, directory):
    ((_, first),) = rank_pool(1).run(epochs_worker, args=(kind, directory, 1, "drop"))
    ((_, again),) = rank_pool(1).run(epochs_worker, args=(kind, directory, 1, "drop"))
    ((_, other),) = rank_pool(1).run(epochs_worker, args=(kind, directory, 2, "drop"))

    assert first == again
    assert first != other


def opening_worker(kind, directory):
    """The files that a rank opens after it has seen their footers."""
    from fsspec.implementations.local import LocalFileSystem

    opened = []

    class Noting(LocalFileSystem):
        def _open(self, path, *args, **kwargs):
            opened.append(Path(path).name)
            return super()._open(path, *args, **kwargs)

    part = shard_function(kind)(directory, seed=3, filesystem=Noting())
    opened.clear()
    numbers_of(part)
    return opened


@KINDS
def test_a_piece_is_read_by_one_rank_or_where_shares_meet(rank_pool, tmp_path, kind):
    pytest.importorskip("fsspec", reason="needs the extra parquet")
    write_numbered(tmp_path / "data", [PIECE] * 10, kind)

    results = rank_pool(3).run(
        opening_worker,
        args=(
            kind,
            str(tmp_path / "data"),
        ),
    )

    for files in results:
        assert len(set(files)) == len(files)
    for ours, theirs in itertools.pairwise(results):
        assert set(ours) & set(theirs) <= {ours[-1]} & {theirs[0]}
    assert not set(results[0]) & set(results[2])


def few_rows_worker(kind, directory):
    shard = shard_function(kind)
    with pytest.raises(ValueError, match=f"shard_{kind} needs a row") as caught:
        shard(directory)
    return str(caught.value), numbers_of(shard(directory, remainder="keep"))


@KINDS
def test_fewer_rows_than_ranks(rank_pool, tmp_path, kind):
    write_numbered(tmp_path / "data", [1, 1], kind)

    results = rank_pool(3).run(
        few_rows_worker,
        args=(
            kind,
            str(tmp_path / "data"),
        ),
    )

    for said, _ in results:
        assert "which there are 3" in said
        assert "with 2 rows" in said
    assert sorted(itertools.chain(*(kept for _, kept in results))) == [0, 1]
