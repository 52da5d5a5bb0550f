"""Messages of Kafka's topics, by their offsets. Needs confluent-kafka."""

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import confluent_kafka as kafka
import numpy as np

from ring_keras.errors import RingKerasError

__all__ = ["KafkaMessages", "Piece", "available", "cut"]

PATIENCE_S = 60.0
"""How long a broker may be silent."""

# Where offsets have no message, a call waits so long for more to come.
_LOOK_S = 0.1
_MESSAGES_AT_ONCE = 1024


class Piece(NamedTuple):
    """Offsets of a partition, from `first` to before `end`."""

    topic: str
    partition: int
    first: int
    end: int

    def __str__(self) -> str:
        offsets = f"offsets {self.first} to {self.end - 1}"
        return f"{offsets} of partition {self.partition} of {self.topic!r}"


def available(config: Mapping[str, Any], topics: Sequence[str]) -> list[Piece]:
    """What the partitions of some topics hold now.

    Raises:
        RingKerasError: If the brokers do not say.
    """
    consumer = _consumer(config)
    pieces = []
    try:
        for topic in sorted(set(topics)):
            found = consumer.list_topics(topic, timeout=PATIENCE_S).topics[topic]
            if found.error is not None:
                raise kafka.KafkaException(found.error)
            for partition in sorted(found.partitions):
                place = kafka.TopicPartition(topic, partition)
                offsets = consumer.get_watermark_offsets(place, timeout=PATIENCE_S)
                if offsets is None:
                    raise RingKerasError(f"no broker knows the offsets of {place}")
                pieces.append(Piece(topic, partition, *offsets))
    except kafka.KafkaException as error:
        raise RingKerasError(f"Kafka says {error}") from error
    finally:
        consumer.close()
    return pieces


def cut(pieces: Sequence[Piece], first: int, end: int) -> list[Piece]:
    """Of all offsets of some pieces, one after the other, those of these places."""
    found = []
    before = 0
    for piece in pieces:
        begin = max(piece.first, piece.first + first - before)
        stop = min(piece.end, piece.first + end - before)
        if begin < stop:
            found.append(piece._replace(first=begin, end=stop))
        before += piece.end - piece.first
    return found


class KafkaMessages:
    """Reads messages in the order of their offsets.

    Args:
        config: See `ring_keras.data.shard_kafka`.
        windows: The offsets of each batch. Those of a partition follow each other.
    """

    def __init__(
        self, config: Mapping[str, Any], windows: Sequence[Sequence[Piece]]
    ) -> None:
        self._windows = windows
        self._ends = {
            (piece.topic, piece.partition): piece.end
            for window in windows
            for piece in window
        }
        self._problem = ""
        self._consumer = _consumer({**config, "error_cb": self._note})
        self._place = ("", -1)
        self._kept: deque[Any] = deque()
        # The first offset whose message may still come.
        self._position = 0

    def batches(self) -> Iterator[dict[str, np.ndarray[Any, Any]]]:
        """The messages of each window.

        Raises:
            RingKerasError: If there are such no longer, or brokers are silent.
        """
        try:
            for window in self._windows:
                yield _columns([m for piece in window for m in self._take(piece)])
        finally:
            self._consumer.close()

    def _take(self, piece: Piece) -> list[Any]:
        if self._place != piece[:2]:
            place = kafka.TopicPartition(piece.topic, piece.partition, piece.first)
            self._consumer.assign([place])
            self._place, self._position = piece[:2], piece.first
            self._kept.clear()
        while self._position < piece.end:
            self._fetch(piece)
        messages = []
        while self._kept and self._kept[0].offset() < piece.end:
            messages.append(self._kept.popleft())
        return messages

    def _fetch(self, piece: Piece) -> None:
        """Brings at least one, or finds out that there is none."""
        left = self._ends[self._place] - self._position
        deadline = time.monotonic() + PATIENCE_S
        before = self._position
        while self._position == before:
            for message in self._consumer.consume(
                min(left, _MESSAGES_AT_ONCE), timeout=_LOOK_S
            ):
                self._accept(message, piece)
            if time.monotonic() > deadline:
                raise RingKerasError(
                    f"ring_keras.data.shard_kafka: of {piece}, nothing came from "
                    f"{before} on for {PATIENCE_S:.0f} s. {self._problem}"
                )

    def _accept(self, message: Any, piece: Piece) -> None:
        error = message.error()
        if (message.topic(), message.partition()) != self._place and not error:
            return  # It was on its way when the last partition was left.
        if error is None:
            self._kept.append(message)
            self._position = message.offset() + 1
        elif error.code() == kafka.KafkaError._PARTITION_EOF:
            # What lies before it, and did not come, is not there: it was compacted, or
            # marks the end of a transaction.
            self._position = max(self._position, message.offset())
        else:
            raise RingKerasError(
                f"ring_keras.data.shard_kafka cannot read {piece}: Kafka says {error}"
            )

    def _note(self, error: Any) -> None:
        self._problem = f"Kafka says {error}"


def _consumer(config: Mapping[str, Any]) -> Any:
    return kafka.Consumer(
        {
            "group.id": "ring_keras",  # It has no members: nothing is subscribed to.
            **config,
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )


def _columns(messages: list[Any]) -> dict[str, np.ndarray[Any, Any]]:
    return {
        "topic": np.array([m.topic().encode() for m in messages], object),
        "partition": np.array([m.partition() for m in messages], np.int32),
        "offset": np.array([m.offset() for m in messages], np.int64),
        "timestamp_ms": np.array([m.timestamp()[1] for m in messages], np.int64),
        "key": np.array([m.key() or b"" for m in messages], object),
        "value": np.array([m.value() or b"" for m in messages], object),
    }
