"""What fails on one rank fails on all, and no rank waits."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import ring_keras as ring


def shards_files(is_broken, directory):
    pytest.importorskip("fsspec", reason="needs the extra parquet")
    ring.data.shard_files("nosuch://bucket/*" if is_broken else f"{directory}/*")


def shards_parquet(is_broken, directory):
    pq = pytest.importorskip("pyarrow.parquet", reason="needs the extra parquet")
    import pyarrow as pa

    path = f"{directory}/{ring.rank()}.parquet"
    pq.write_table(pa.table({"a": [1, 2, 3]}), path)
    ring.data.shard_parquet(path, remainder="pad" if is_broken else "drop")


def shards_arrays(is_broken, _):
    ring.data.shard((np.zeros(4), np.zeros(3 if is_broken else 4)))


def shards_a_dataset(is_broken, _):
    data = tf.data.Dataset.range(9)
    ring.data.shard(data.batch(2) if is_broken else data)


def shards_with(is_broken, _):
    ring.data.shard(np.zeros(4), remainder="other" if is_broken else "drop")


def joins(is_broken, _):
    data = tf.data.Dataset.range(9)
    ring.data.join(data if is_broken else data.batch(2))


def failing_worker(look, directory):
    """The message and its cause; then the same with all ranks at fault."""
    with pytest.raises(ring.RankMismatchError) as caught:
        look(ring.rank() == 1, directory)
    with pytest.raises(ValueError):
        look(True, directory)
    assert len(ring.allgather_object(0)) == ring.size()
    return str(caught.value), type(caught.value.__cause__).__name__


@pytest.mark.parametrize(
    ("look", "name"),
    [
        (shards_files, "shard_files"),
        (shards_parquet, "shard_parquet"),
        (shards_arrays, "shard"),
        (shards_a_dataset, "shard"),
        (shards_with, "shard"),
        (joins, "join"),
    ],
)
def test_one_rank_that_fails_is_named_on_all(rank_pool, tmp_path, look, name):
    (tmp_path / "1").touch()
    (tmp_path / "2").touch()

    results = rank_pool(2).run(failing_worker, args=(look, str(tmp_path)))

    (message, no_cause), (same, cause) = results
    assert message == same
    assert f"ring_keras.data.{name} failed on rank 1: ValueError: " in message
    assert (no_cause, cause) == ("NoneType", "ValueError")
