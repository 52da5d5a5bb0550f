"""Splits the rows of Arrow IPC files among the ranks."""

import os
from collections.abc import Sequence
from typing import Any, Literal

import tensorflow as tf

from ring_keras.data.resume import Resume
from ring_keras.data.shard_tables import shard_tables
from ring_keras.job.process_set import ProcessSet

__all__ = ["shard_arrow"]


def shard_arrow(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    columns: Sequence[str] | None = None,
    seed: int | None = None,
    remainder: Literal["drop", "keep"] = "drop",
    resume: Resume | None = None,
    filesystem: Any = None,
    process_set: ProcessSet | None = None,
) -> tf.data.Dataset:
    """Returns this rank's rows of Arrow IPC files (Feather), and reads no others.

    It works as `shard_parquet`, with record batches in place of row groups:

    ```python
    rows = ring.data.shard_arrow("gs://bucket/train/*.feather", seed=1)
    train = rows.map(lambda row: (row["x"], row["y"])).batch(32).prefetch(2)
    model.fit(train, shuffle=False, callbacks=[...])
    ```

    Every rank of the process set must call it. Each rank reads the footers of all files
    and the headers of their record batches, and the ranks check that they are the same.

    Examples:
        >>> import pyarrow as pa
        >>> import pyarrow.feather
        >>> with ring.callbacks.RootOnly() as is_root:
        ...     if is_root:
        ...         pa.feather.write_feather(pa.table({"x": x[:, 0]}), "train.feather")
        >>> rows = ring.data.shard_arrow("train.feather", seed=1)
        >>> len(rows)
        16

    Args:
        paths: As for `shard_parquet`. The files (".arrow", ".feather") are those of
            `pyarrow.ipc.new_file`, `pyarrow.feather.write_feather` and
            `pandas.DataFrame.to_feather`, compressed or not. Feather version 1 and
            Arrow streams are not read.
        columns: The names of the columns to read. Defaults to all.
        seed: Shuffles the record batches, and the rows within each, in the same way on
            every rank, and again in each epoch, as `shard` does. Without it, the order
            is that of the names.
        remainder: "drop" leaves out the last few rows, fewer than there are ranks;
            "keep" leaves out none.
        resume: See `shard`. Needs a seed.
        filesystem: See `shard_parquet`.
        process_set: Ranks to split among. Defaults to all.

    Returns:
        A dataset of rows, as `shard_parquet` does.

    Raises:
        ImportError: If pyarrow, or for a URL fsspec, is not installed.
        ValueError: If there are no such files or columns, a file is of another format
            or damaged, columns have types that tensors do not have, or there are fewer
            rows than ranks.
        RankMismatchError: If the ranks see different files, or have different
            arguments, or one of them cannot read the files.
    """
    return shard_tables(
        "shard_arrow",
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
    from ring_keras.data.arrow_reader import ArrowReader

    return ArrowReader
