"""Splits the rows of files of tables among the ranks."""

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ring_keras.data.agreement import seen_alike
from ring_keras.data.passes import in_passes, passes_of
from ring_keras.data.resume import Resume
from ring_keras.job.process_set import ProcessSet, global_process_set
from ring_keras.ops.data_order import DataOrder
from ring_keras.training.parts import note_part

__all__ = ["shard_tables"]


def shard_tables(
    function: str,
    reader: Callable[[], Any],
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    columns: Sequence[str] | None,
    seed: int | None,
    remainder: str,
    resume: Resume | None,
    filesystem: Any,
    process_set: ProcessSet | None,
) -> tf.data.Dataset:
    """This rank's rows of files of one format; see `shard_parquet`.

    Args:
        function: The name of the one in `ring_keras.data` that was called.
        reader: Returns the format's `TableReader`; imports pyarrow.
        paths: See `shard_parquet`, as for all others.
        columns: See there.
        seed: See there.
        remainder: See there.
        resume: See there.
        filesystem: See there.
        process_set: See there.
    """
    process_set = process_set or global_process_set
    if isinstance(paths, (str, os.PathLike)):
        paths = [paths]
    names = [os.fspath(path) for path in paths]

    def look() -> tuple[Any, str, list[Any]]:
        _require_arguments(seed, remainder, resume)
        files = _files(function, reader, names, columns, filesystem)
        words = (
            f"{len(files.names)} files with {files.row_counts.sum()} rows "
            f"(seed={seed}, remainder={remainder!r})"
        )
        return files, words, files.contents()

    files = seen_alike(
        f"data.{function}",
        look,
        process_set,
        problem="the ranks see different files",
        remedy="Give every rank the same arguments, on a file system that all hosts "
        "share.",
    )
    total, size = int(files.row_counts.sum()), process_set.size()
    if remainder == "drop" and total < size:
        raise ValueError(
            "[RK511] "
            f"ring_keras.data.{function} needs a row for each rank, of which there are "
            f"{size}. Received: paths={names}, with {total} rows. remainder='keep' "
            "gives ranks none."
        )
    rank, whole = process_set.rank(), total
    if remainder == "drop":
        whole -= total % size
    share = range(whole * rank // size, whole * (rank + 1) // size)
    order = DataOrder(f"{total} rows of files", counts_passes=resume is None)
    order.add_to_job(process_set)
    if resume is not None:
        resume.at_epoch(order.set_epoch)
    rows = _Rows(files, share, is_shuffled=seed is not None)
    if seed is None:
        passes = tf.data.Dataset.from_tensors(tf.constant(0, tf.int64))
    else:
        passes = passes_of(order, seed)
    part = in_passes(order, passes, rows.of_pass, len(share))
    if size > 1:
        note_part(part, process_set)
    return part


class _Rows:
    """A rank's share of the rows of an order, read by windows: parts of pieces.

    Args:
        files: `TableFiles`.
        share: The places of its rows in each order.
        is_shuffled: Whether orders follow from seeds, or from the files' names.
    """

    def __init__(self, files: Any, share: range, *, is_shuffled: bool) -> None:
        self._files = files
        self._share = share
        self._is_shuffled = is_shuffled

    def of_pass(self, seed: tf.Tensor) -> tf.data.Dataset:
        """The rows, in the order of a pass's seed, a scalar of int64."""
        columns = self._files.columns
        specs = [column.window_spec() for column in columns]

        def read(window: tf.Tensor) -> dict[str, tf.Tensor]:
            arrays = tf.numpy_function(
                self._read, [seed, window], [spec.dtype for spec in specs]
            )
            for array, spec in zip(arrays, specs, strict=True):
                array.set_shape(spec.shape)
            return {c.name: array for c, array in zip(columns, arrays, strict=True)}

        def item(row: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            return {column.name: column.item(row[column.name]) for column in columns}

        windows = tf.ensure_shape(
            tf.numpy_function(self._windows, [seed], tf.int64), [None, 3]
        )
        read_ahead = tf.data.Dataset.from_tensor_slices(windows).map(read).prefetch(1)
        rows = read_ahead.unbatch()
        return rows.map(item) if any(column.is_decoded for column in columns) else rows

    def _windows(self, seed: int) -> np.ndarray[Any, Any]:
        """Each a piece and the first and last place in it, of its own order."""
        counts = self._files.row_counts
        order = np.arange(len(counts))
        if self._is_shuffled:
            order = _generator(seed).permutation(order)
        ends = np.cumsum(counts[order])
        begins = ends - counts[order]
        share = self._share
        first, last = np.clip([begins, ends], share.start, share.stop) - begins
        windows = np.stack([order, first, last], axis=1).astype(np.int64)
        found: np.ndarray[Any, Any] = windows[last > first]
        return found

    def _read(self, seed: int, window: np.ndarray[Any, Any]) -> list[Any]:
        piece, first, last = window.tolist()
        if not self._is_shuffled:
            rows: Any = slice(first, last)
        else:
            # The same on both ranks whose shares meet in it.
            count = self._files.row_counts[piece]
            rows = _generator(seed, piece + 1).permutation(count)[first:last]
        found: list[Any] = self._files.read(piece, rows)
        return found


def _generator(*seed: int) -> np.random.Generator:
    # Negative numbers are none of its seeds.
    return np.random.default_rng([int(number) % 2**64 for number in seed])


def _require_arguments(seed: int | None, remainder: str, resume: Resume | None) -> None:
    if remainder not in ("drop", "keep"):
        raise ValueError(
            f"`remainder` must be 'drop' or 'keep'. Received: remainder={remainder!r}"
        )
    if resume is not None and seed is None:
        raise ValueError("`resume` takes a seed, from which it makes each epoch's.")


def _files(
    function: str,
    reader: Callable[[], Any],
    paths: list[str],
    columns: Sequence[str] | None,
    filesystem: Any,
) -> Any:
    try:
        from ring_keras.data.table_files import TableFiles

        reader_class = reader()
    except ModuleNotFoundError as error:
        raise ImportError(
            "[RK710] "
            f"ring_keras.data.{function} needs pyarrow. Run "
            '`pip install "ring-keras[parquet]"`.'
        ) from error
    return TableFiles(reader_class, paths, columns, filesystem)
