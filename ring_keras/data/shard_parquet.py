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

    An epoch is a sequence of row groups. Each rank takes an equal share of its rows,
    beginning where the previous rank's share ends. So one rank reads a row group, or
    two if their shares meet in it, one row group at a time:

    ```python
    rows = ring.data.shard_parquet("s3://bucket/train", columns=["x", "y"], seed=1)
    train = rows.map(lambda row: (row["x"], row["y"])).batch(32).prefetch(2)
    model.fit(train, shuffle=False, callbacks=[...])
    ```

    Every rank of the process set must call it. Each rank reads the footers of all
    files, and the ranks check that they are the same.

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
        paths: One of these, or several; a file counts once. They are on this host, or
            URLs of file systems that the package fsspec has, such as
            "s3://bucket/train", "gs://" and "hdfs://".

            - A file.
            - A directory as Spark writes it, with everything below it. Names that
              begin with `_` or `.` are skipped.
            - A pattern of files or directories, such as "data/part-*.parquet" and
              "data/day=*".
        columns: The names of the columns to read. Defaults to all.
        seed: Shuffles the row groups, and the rows within each, in the same way on
            every rank, and again in each epoch, as `shard` does. The same number on
            every rank. Without it, the order is that of the names.
        remainder: "drop" leaves out the last few rows, fewer than there are ranks, so
            all ranks have the same number. "keep" leaves out none. Use it for
            evaluation, and for training with `ring_keras.data.join`.
        resume: See `shard`. Needs a seed.
        filesystem: The file system of `paths`: a `pyarrow.fs.FileSystem`, or one of
            fsspec. Defaults to the one that fsspec makes for the URL.
        process_set: Ranks to split among. Defaults to all.

    Returns:
        A dataset of rows, of known cardinality. A row is a dict with a tensor for each
        column: a scalar for numbers, strings and bytes; shape [k] for lists of fixed
        size; shape [None] for other lists of numbers, for which there are
        `tf.ensure_shape` and `padded_batch`. Reading a null raises an error.

    Raises:
        ImportError: If pyarrow, or for a URL fsspec, is not installed.
        ValueError: If there are no such files or columns, if a column has another type
            than numbers, strings, bytes or lists of numbers, or if there are fewer rows
            than ranks.
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
