"""Splits files among the ranks."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from ring_keras.data.agreement import seen_alike
from ring_keras.data.file_systems import matching
from ring_keras.data.resume import Resume
from ring_keras.data.shard import shard
from ring_keras.job.process_set import ProcessSet, global_process_set

__all__ = ["shard_files"]


def shard_files(
    pattern: str | Sequence[str],
    *,
    seed: int | None = None,
    resume: Resume | None = None,
    process_set: ProcessSet | None = None,
) -> tf.data.Dataset:
    """Returns the names of this rank's files, so that it reads no others.

    Every file is on exactly one rank. Interleave the files, and shuffle their items as
    you like. If some ranks' files have more items, use `ring_keras.data.join`:

    ```python
    files = ring.data.shard_files("gs://bucket/train-*.tfrecord", seed=1)
    dataset = files.interleave(
        tf.data.TFRecordDataset, cycle_length=4, num_parallel_calls=4)
    dataset = dataset.shuffle(10_000).map(parse).batch(32).prefetch(2)
    model.fit(ring.data.join(dataset), ...)
    ```

    Examples:
        >>> with ring.callbacks.RootOnly() as is_root:
        ...     for number in range(4 if is_root else 0):
        ...         tf.io.write_file(f"part-{number}.txt", f"line of {number}")
        >>> files = ring.data.shard_files("part-*.txt")
        >>> list(files.interleave(tf.data.TextLineDataset).as_numpy_iterator())
        [b'line of 0', b'line of 2']

    Args:
        pattern: A pattern of names, as for `tf.io.gfile.glob`, or several, or the
            names themselves. For protocols that TensorFlow does not have, such as
            "s3://", fsspec is used.
        seed: Shuffles all names before they are split, in the same way on every rank,
            and again each time the dataset is iterated.
        resume: See `shard`.
        process_set: Ranks to split among. Defaults to all.

    Returns:
        A dataset of strings.

    Raises:
        ValueError: If there are fewer files than ranks.
        RankMismatchError: If the ranks see different files, or a rank cannot list them.
    """
    process_set = process_set or global_process_set
    patterns = [pattern] if isinstance(pattern, str) else list(pattern)

    def look() -> tuple[list[str], str, list[str]]:
        names = sorted({name for one in patterns for name in matching(str(one))})
        return names, f"{len(names)} files, from {names[:1]} on", names

    names = seen_alike(
        "data.shard_files",
        look,
        process_set,
        problem="the ranks see different files",
        remedy="Give every rank the same pattern, on a file system that all hosts "
        "share.",
    )
    if len(names) < process_set.size():
        raise ValueError(
            "[RK511] "
            "ring_keras.data.shard_files needs a file for each rank, of which there "
            f"are {process_set.size()}. Received: pattern={pattern!r}, which "
            f"{len(names)} files match. "
            "Split items in place of files, with ring_keras.data.shard()."
        )
    return shard(
        tf.data.Dataset.from_tensor_slices(np.array(names)),
        seed=seed,
        remainder="keep",
        resume=resume,
        process_set=process_set,
    )
