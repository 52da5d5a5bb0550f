"""Splits the rows of Parquet files among the ranks."""

import os
from collections.abc import Sequence
from typing import Any, Literal

import tensorflow as tf

from ring_keras.data.resume import Resume
from ring_keras.data.shard_tables import shard_tables
from ring_keras.job.process_set import ProcessSet

__all__ = ["shard_parquet"]


def shard_parquet(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    columns: Sequence[str] | None = None,
    seed: int | None = None,
    remainder: Literal["drop", "keep"] = "drop",
    resume: Resume | None = None,
    filesystem: Any = None,
    process_set: ProcessSet | None = None,
) -> tf.data.Dataset:
    """Returns this rank's rows of Parquet files, and reads no others.

    An epoch's order is one of row groups. Each rank takes an equal share of its rows,
    from where the rank before it ends, so that a row group is read by one rank, or by
    two where their shares meet, one group at a time:

    ```python
    rows = ring.data.shard_parquet("s3://bucket/train", columns=["x", "y"], seed=1)
    train = rows.map(lambda row: (row["x"], row["y"])).batch(32).prefetch(2)
    model.fit(train, shuffle=False, callbacks=[...])
    ```

    Every rank of the process set must call it. Each reads the footers of all files, and
    all make sure that they are the same.

    Examples:
        >>> import pyarrow as pa
        >>> import pyarrow.parquet
        >>> with ring.callbacks.RootOnly() as is_root:
        ...     if is_root:
        ...         pa.parquet.write_table(pa.table({"x": x[:, 0]}), "train.parquet")
        >>> rows = ring.data.shard_parquet("train.parquet", seed=1)
        >>> len(rows)
        16

    Args:
        paths: A file, a directory, with all that is below it, as Spark writes them:
            names that begin with `_` or `.` are passed over; or a pattern of files or
            directories, such as "data/part-*.parquet" and "data/day=*". Or several;
            a file counts once. On this host, or URLs of file systems that the package
            fsspec has, such as "s3://bucket/train", "gs://" and "hdfs://".
        columns: The names of those to read. Defaults to all.
        seed: Shuffles the row groups, and the rows within each, on every rank alike
            and anew in each epoch, as `shard` does. The same number on every rank.
            Defaults to the order of names.
        remainder: "drop" leaves out the last few rows of the order, fewer than ranks,
            so that all ranks have as many. "keep" leaves out none: for evaluation, and
            for training with `ring_keras.data.join`.
        resume: See `shard`. Needs a seed.
        filesystem: Which has `paths`: a `pyarrow.fs.FileSystem`, or a file system of
            fsspec's. Defaults to that of the URL, as fsspec makes it.
        process_set: Ranks to split among. Defaults to all.

    Returns:
        A dataset of rows, whose number it knows. A row is a dict with a tensor for each
        column: a scalar, of strings for strings and bytes; shape [k] for lists of fixed
        size; [None] for other lists of numbers, which `tf.ensure_shape` or
        `padded_batch` are for. Nulls are an error where they are read.

    Raises:
        ImportError: If pyarrow, or for a URL fsspec, is not installed.
        ValueError: If there are no such files or columns, columns that are not of
            numbers, strings, bytes or lists of numbers, or fewer rows than ranks.
        RankMismatchError: If the ranks see different files, or have different
            arguments, or one of them cannot read the files.
    """
    return shard_tables(
        "shard_parquet",
        _reader,
        paths,
        columns=columns,
        seed=seed,
        remainder=remainder,
        resume=resume,
        filesystem=filesystem,
        process_set=process_set,
    )


def _reader() -> Any:
    from ring_keras.data.parquet_reader import ParquetReader

    return ParquetReader
