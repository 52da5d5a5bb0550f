"""Splits messages of Kafka's topics among the ranks."""

import operator
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from ring_keras.data.agreement import seen_alike
from ring_keras.data.first_rank import of_first_rank
from ring_keras.data.kafka_order import KafkaOrder
from ring_keras.data.kafka_pass import KafkaPass, Piece, read_pass, write_pass
from ring_keras.data.resume import Resume
from ring_keras.job.process_set import ProcessSet, global_process_set
from ring_keras.lifecycle.elastic_launcher import is_elastic

__all__ = ["shard_kafka"]

_NAME = "data.shard_kafka"
_SPEC = {
    "topic": tf.TensorSpec([None], tf.string),
    "partition": tf.TensorSpec([None], tf.int32),
    "offset": tf.TensorSpec([None], tf.int64),
    "timestamp_ms": tf.TensorSpec([None], tf.int64),
    "key": tf.TensorSpec([None], tf.string),
    "value": tf.TensorSpec([None], tf.string),
}


def shard_kafka(
    topics: str | Sequence[str],
    offsets: str | os.PathLike[str],
    *,
    batch_size: int,
    config: Mapping[str, Any],
    resume: Resume | None,
    after: str | os.PathLike[str] | None = None,
    process_set: ProcessSet | None = None,
) -> tf.data.Dataset:
    """Returns this rank's batches of the messages that topics hold now.

    At the first start, the first and the last offset of each partition are saved in a
    file. All offsets have one order, by topics and partitions, and each rank takes an
    equal share of it, for any number of partitions. When `fit` first begins, it saves
    the model's number of steps in the file, too. So the file and the model's number of
    steps, which is in each of its backups, determine the messages on which it has been
    trained. A job that is killed and started again trains on each message once:

    ```python
    config = {"bootstrap.servers": "broker:9092"}
    resume = ring.data.Resume()
    batches = ring.data.shard_kafka(
        "clicks", "/shared/job/offsets.json", batch_size=32, config=config,
        resume=resume)
    model.fit(batches.map(parse).prefetch(2), callbacks=[
        ring.callbacks.Preemption("/shared/job/backup"),
        resume,
        ring.callbacks.BroadcastGlobalVariables(),
        ring.callbacks.MetricAverage(),
    ])
    ```

    Every rank of the process set must call it. Nothing is committed to Kafka, and no
    consumer group is joined.

    Examples:
        `brokers` is such as `"broker:9092"`, and the topic "clicks" holds 32 messages:

        >>> batches = ring.data.shard_kafka(
        ...     "clicks", "offsets.json", batch_size=4,
        ...     config={"bootstrap.servers": brokers}, resume=None)
        >>> len(batches)
        4

    Args:
        topics: A topic, or several.
        offsets: The file, on a file system that the first rank can reach in each start
            of the job; no URL. If it does not exist, that rank asks the brokers and
            writes it.
        batch_size: The largest number of messages in a batch. All ranks have the same
            number of batches, and their sizes differ by at most one. A batch has fewer
            messages if some of its offsets have none.
        config: librdkafka's settings, including "bootstrap.servers".
        resume: The `Resume` that is also in the callbacks of the `fit` that trains on
            these messages. Reading them elsewhere is an error. Between shard_kafka and
            `fit`, only `map`, `prefetch` and `with_options` are allowed. None is for
            evaluation and for looking at messages: a `fit` with a callback of
            ring_keras refuses such data, and any other training on them may use a
            message more than once.
        after: The file of an earlier pass. This pass begins where that one ended, and
            at the first message of new partitions and topics. The model must have been
            trained on all messages of that pass. By default, a pass begins at the first
            messages of the topics.
        process_set: Ranks to split among. Defaults to all.

    Returns:
        A dataset of batches, of known cardinality. A batch is a dict of "topic", "key"
        and "value" (strings, empty for null), "partition" (int32), "offset" and
        "timestamp_ms" (int64), each of shape [size of the batch].

    Raises:
        ImportError: If confluent-kafka is not installed.
        ValueError: If there are fewer offsets than ranks; if the file is no file of
            offsets, or was written for other topics, another number of ranks,
            `batch_size` or `after`; if messages since `after` no longer exist; in an
            elastic job. `fit` raises it if the model's backup does not belong to the
            file.
        RankMismatchError: If the ranks have different arguments, or if only some have
            wrong ones.
        RingKerasError: If the brokers do not answer for a minute, or the file cannot be
            read or written. Reading raises it, too, if messages no longer exist, or if
            a batch would have none.
    """
    if is_elastic():
        raise ValueError(
            "ring_keras.data.shard_kafka needs a fixed number of ranks: what a step "
            "trains on follows from it. Start the job without --min-np."
        )
    process_set = process_set or global_process_set

    def checked() -> tuple[dict[str, Any], str, None]:
        given = _arguments(topics, offsets, batch_size, config, after)
        words = [f"{name}={value!r}" for name, value in given.items()]
        if resume is None:
            words.append("resume=None")
        return given, ", ".join(words), None

    wanted = seen_alike(
        _NAME,
        checked,
        process_set,
        problem="the ranks have different arguments",
        remedy="Give every rank the same.",
    )
    path = Path(offsets).absolute()

    def kept() -> str:
        if path.exists():
            return _kept(path, wanted, process_set.size()).encode()
        made = _new(path, wanted, process_set.size(), config)
        write_pass(path, made)
        return made.encode()

    messages = KafkaPass.decode(of_first_rank(_NAME, kept, process_set))
    order = KafkaOrder(path, messages, resume is not None, process_set)
    if resume is not None:
        resume.bind(order)
    rank = process_set.rank()

    def batches() -> Iterator[Any]:
        from ring_keras.data.kafka_messages import KafkaMessages

        order.require_begun()
        share = messages.offsets_of(rank, 0, messages.steps)
        windows = (
            messages.offsets_of(rank, step, step + 1) for step in range(messages.steps)
        )
        return KafkaMessages(config, share, windows).batches()

    dataset = tf.data.Dataset.from_generator(batches, output_signature=_SPEC)
    return order.put_on(
        dataset.apply(tf.data.experimental.assert_cardinality(messages.steps))
    )


def _arguments(
    topics: str | Sequence[str],
    offsets: str | os.PathLike[str],
    batch_size: int,
    config: Mapping[str, Any],
    after: str | os.PathLike[str] | None,
) -> dict[str, Any]:
    """Those that must be the same on all ranks, as the file has them."""
    try:
        from ring_keras.data.kafka_messages import require_settings
    except ModuleNotFoundError as error:
        raise ImportError(
            "[RK710] "
            "ring_keras.data.shard_kafka needs confluent-kafka. Run "
            '`pip install "ring-keras[kafka]"`.'
        ) from error
    require_settings(config)
    names = [topics] if isinstance(topics, str) else list(topics)
    if not names or not all(isinstance(name, str) and name for name in names):
        raise ValueError(
            f"`topics` must be names, one at least. Received: topics={topics!r}"
        )
    try:
        size = operator.index(batch_size)
    except TypeError:
        size = 0
    if size < 1:
        raise ValueError(
            "`batch_size` must be an integer, and at least 1. Received: "
            f"batch_size={batch_size!r}"
        )
    files = {"offsets": os.fspath(offsets), "after": after and os.fspath(after)}
    for name, file in files.items():
        if file is not None and "://" in str(file):
            raise ValueError(
                f"`{name}` must be a path, not a URL: a file that is replaced at once. "
                f"Received: {name}={file!r}"
            )
    if files["after"] is not None:
        directory = Path(offsets).absolute().parent
        files["after"] = os.path.relpath(files["after"], directory)
    return {"topics": sorted(set(names)), "batch_size": size, **files}


def _kept(path: Path, wanted: Mapping[str, Any], ranks: int) -> KafkaPass:
    """What the file has."""
    kept = read_pass(path)
    pairs = {
        "topics": (list(kept.topics), wanted["topics"]),
        "ranks": (kept.ranks, ranks),
        "batch_size": (kept.batch_size, wanted["batch_size"]),
        "after": (kept.after, wanted["after"]),
    }
    differ = [
        f"{name}={theirs!r}, not {ours!r}"
        for name, (theirs, ours) in pairs.items()
        if theirs != ours
    ]
    if differ:
        raise ValueError(
            f"{path} was written with {', '.join(differ)}. Start the job as before; "
            "or, once the model has been trained on these messages, name another file, "
            "and have it begin `after` this one."
        )
    return kept


def _new(
    path: Path, wanted: Mapping[str, Any], ranks: int, config: Mapping[str, Any]
) -> KafkaPass:
    """What is there now."""
    from ring_keras.data.kafka_messages import available

    topics, after = wanted["topics"], wanted["after"]
    pieces = available(config, topics)
    if after is not None:
        before = path.parent / after
        pieces = _begin_after(pieces, before, read_pass(before))
    return KafkaPass(
        topics=tuple(topics),
        ranks=ranks,
        batch_size=wanted["batch_size"],
        after=after,
        offsets=tuple(pieces),
    )


def _begin_after(pieces: list[Piece], path: Path, before: KafkaPass) -> list[Piece]:
    ends = before.ends()
    missing = sorted(set(ends) - {(piece.topic, piece.partition) for piece in pieces})
    if missing:
        raise ValueError(
            f"{path} has topics and partitions that are not here: {missing}. What came "
            "later in them would never be trained on."
        )
    begun = []
    for piece in pieces:
        start = ends.get((piece.topic, piece.partition), piece.first)
        if not piece.first <= start <= piece.end:
            raise ValueError(
                f"{path} ends at offset {start} of partition {piece.partition} of "
                f"{piece.topic!r}, which has those from {piece.first} to before "
                f"{piece.end} now"
            )
        begun.append(piece._replace(first=start))
    return begun
