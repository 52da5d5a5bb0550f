"""Splits messages of Kafka's topics among the ranks."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from ring_keras.errors import RingKerasError
from ring_keras.job.job import current_job
from ring_keras.job.process_set import ProcessSet, global_process_set
from ring_keras.lifecycle.elastic_launcher import is_elastic
from ring_keras.ops.objects import broadcast_object

__all__ = ["shard_kafka"]

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
    after: str | os.PathLike[str] | None = None,
    process_set: ProcessSet | None = None,
) -> tf.data.Dataset:
    """Returns this rank's batches of the messages that topics hold now.

    Which those are is asked once, and kept in a file: the first and the last offset of
    each partition. Offsets have one order, by topics and partitions, of which each rank
    takes an equal share, however many partitions there are. So what a step trains on
    follows from the file and the step's number, and a job that is killed and resumed
    trains on each message once, if `Resume` takes it to the step after the last one
    that was saved:

    ```python
    config = {"bootstrap.servers": "broker:9092"}
    resume = ring.data.Resume()
    batches = ring.data.shard_kafka(
        "clicks", "/shared/job/offsets.json", batch_size=32, config=config)
    model.fit(batches.map(parse), callbacks=[
        ring.callbacks.Preemption("/shared/job/backup"), resume, ...])
    ```

    Every rank of the process set must call it. Nothing is committed to Kafka, and no
    consumer group is joined.

    Args:
        topics: One or several.
        offsets: The file, on a file system that the first rank can reach in each start
            of the job. If it is not there, that rank asks the brokers and writes it.
        batch_size: The most messages of a batch. There are as many batches on every
            rank, of sizes that differ by one at most, but where offsets have no
            message: such batches have fewer, or none, as those of `join`.
        config: librdkafka's settings, "bootstrap.servers" among them.
        after: The file of an earlier job, at whose end this one begins, and with new
            partitions. Defaults to the first messages that are there.
        process_set: Ranks to split among. Defaults to all.

    Returns:
        A dataset of batches, whose number it knows: dicts of "topic", "key" and
        "value", of strings (empty for null), "partition" of int32, "offset" and
        "timestamp_ms" of int64, each of shape [size of the batch].

    Raises:
        ImportError: If confluent-kafka is not installed.
        ValueError: If there are fewer offsets than ranks; if the file was written for
            other topics, another number of ranks or another `batch_size`; if messages
            since `after` are not there any more; in an elastic job.
        RingKerasError: If the brokers do not answer for a minute.
    """
    if is_elastic():
        raise ValueError(
            "ring_keras.data.shard_kafka needs a fixed number of ranks: what a step "
            "trains on follows from it. Start the job without --min-np."
        )
    if batch_size < 1:
        raise ValueError(
            f"`batch_size` must be at least 1. Received: batch_size={batch_size}"
        )
    try:
        from ring_keras.data.kafka_messages import KafkaMessages, Piece, cut
    except ModuleNotFoundError as error:
        raise ImportError(
            "ring_keras.data.shard_kafka needs confluent-kafka. Run "
            '`pip install "ring-keras[kafka]"`.'
        ) from error
    process_set = process_set or global_process_set
    rank, size = process_set.rank(), process_set.size()
    names = sorted({topics} if isinstance(topics, str) else set(topics))
    job = {"topics": names, "ranks": size, "batch_size": batch_size}
    found = _of_first_rank(
        lambda: _kept_offsets(Path(offsets), after, job, config), process_set
    )
    pieces = [Piece(*piece) for piece in found]
    total = sum(piece.end - piece.first for piece in pieces)
    steps = -(-total // (size * batch_size))

    def window(step: int) -> list[Piece]:
        place = rank * steps + step
        places = (total * at // (size * steps) for at in (place, place + 1))
        return cut(pieces, *places)

    windows = [window(step) for step in range(steps)]
    current_job().has_joined_data = True  # Batches may be empty.
    batches = tf.data.Dataset.from_generator(
        lambda: KafkaMessages(config, windows).batches(), output_signature=_SPEC
    )
    return batches.apply(tf.data.experimental.assert_cardinality(steps))


def _of_first_rank(make: Callable[[], Any], process_set: ProcessSet) -> Any:
    """What it makes, or its error, on every rank."""
    root, answer = process_set.ranks[0], None
    if process_set.rank() == 0:
        try:
            answer = {"made": make()}
        except (OSError, RingKerasError) as error:
            answer = {"failed": str(error)}
        except ValueError as error:
            answer = {"refused": str(error)}
    answer = broadcast_object(
        answer, root, name="data.shard_kafka", process_set=process_set
    )
    if "made" in answer:
        return answer["made"]
    ((kind, said),) = answer.items()
    message = f"ring_keras.data.shard_kafka: {said}"
    raise ValueError(message) if kind == "refused" else RingKerasError(message)


def _kept_offsets(
    path: Path,
    after: str | os.PathLike[str] | None,
    job: dict[str, Any],
    config: Mapping[str, Any],
) -> list[Any]:
    """Those of a file, which is written first if it is not there."""
    if path.exists():
        kept = _read(path)
        differ = [name for name in job if kept[name] != job[name]]
        if differ:
            raise ValueError(
                f"{path} was written for another job: "
                + ", ".join(f"{n}={kept[n]!r}, not {job[n]!r}" for n in differ)
                + ". Start it as before, or name another file and have it begin "
                "`after` this one."
            )
        return list(kept["offsets"])
    from ring_keras.data.kafka_messages import available

    pieces: list[list[Any]] = [
        list(piece) for piece in available(config, job["topics"])
    ]
    if after is not None:
        _begin_after(pieces, after)
    total = sum(piece[3] - piece[2] for piece in pieces)
    if total < job["ranks"]:
        raise ValueError(
            f"a message for each of {job['ranks']} ranks is needed, and topics "
            f"{job['topics']} have {total}"
        )
    _write(path, {**job, "offsets": pieces})
    return pieces


def _begin_after(pieces: list[list[Any]], path: str | os.PathLike[str]) -> None:
    ends = {(t, p): end for t, p, _, end in _read(Path(path))["offsets"]}
    for piece in pieces:
        topic, partition, first, end = piece
        start = ends.get((topic, partition), first)
        if not first <= start <= end:
            raise ValueError(
                f"{path} ends at offset {start} of partition {partition} of {topic!r}, "
                f"which has those from {first} to before {end} now"
            )
        piece[2] = start


def _read(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text())
        return found
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} has no offsets: {error}") from error


def _write(path: Path, content: dict[str, Any]) -> None:
    """Whole, or not at all."""
    unfinished = path.with_name(f"unfinished.{path.name}")
    with unfinished.open("w") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
