"""Messages of Kafka's topics, by their offsets. Needs confluent-kafka."""

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import confluent_kafka as kafka
import numpy as np

from ring_keras.data.kafka_pass import Piece
from ring_keras.errors import RingKerasError

__all__ = ["KafkaMessages", "available", "require_settings"]

PATIENCE_S = 60.0
"""How long a broker may be silent."""

# Where offsets have no message, a call waits so long for more to come.
_LOOK_S = 0.1
_MESSAGES_AT_ONCE = 1024

# Which messages are read follows from the file, not from what Kafka has noted.
_SETTINGS = {
    "auto.offset.reset": "error",
    "enable.auto.commit": False,
    "enable.partition.eof": True,
}


def require_settings(config: Mapping[str, Any]) -> None:
    """Refuses settings that would be others than ours.

    Raises:
        ValueError: If there are such.
    """
    given = {**config.get("default.topic.config", {}), **config}
    for name, value in given.items():
        ours = _SETTINGS.get(name, value)
        if str(value).lower() != str(ours).lower():
            raise ValueError(
                f"`config` cannot have {name!r}: {value!r}. It is {ours!r} here: what "
                "is read follows from the file of offsets alone."
            )
        if name.startswith("group.") and name != "group.id":
            raise ValueError(
                f"`config` cannot have {name!r}: no consumer group is joined here."
            )


def available(config: Mapping[str, Any], topics: Sequence[str]) -> list[Piece]:
    """What the partitions of some topics hold now, by topics and partitions.

    Raises:
        RingKerasError: If the brokers do not say.
    """
    consumer = _consumer(config)
    pieces = []
    try:
        for topic in topics:
            with_what = f"topic {topic!r}"
            try:
                found = consumer.list_topics(topic, timeout=PATIENCE_S).topics[topic]
                _require_no_error(found.error)
                for partition in sorted(found.partitions):
                    with_what = f"partition {partition} of topic {topic!r}"
                    _require_no_error(found.partitions[partition].error)
                    place = kafka.TopicPartition(topic, partition)
                    offsets = consumer.get_watermark_offsets(place, timeout=PATIENCE_S)
                    if offsets is None:
                        raise RingKerasError(
                            f"[RK520] no broker has offsets of {with_what}"
                        )
                    pieces.append(Piece(topic, partition, *offsets))
            except kafka.KafkaException as error:
                raise RingKerasError(
                    f"[RK520] of {with_what} Kafka says {error}"
                ) from error
    finally:
        consumer.close()
    return pieces


class KafkaMessages:
    """Reads messages in the order of their offsets.

    Args:
        config: See `ring_keras.data.shard_kafka`.
        pieces: All that is read, each of a partition of its own.
        windows: The offsets of each batch, of which `pieces` is made.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        pieces: Sequence[Piece],
        windows: Iterable[Sequence[Piece]],
    ) -> None:
        self._windows = windows
        self._ends = {(piece.topic, piece.partition): piece.end for piece in pieces}
        self._problem = ""
        self._error_callback = config.get("error_cb")
        self._consumer = _consumer({**config, "error_cb": self._note})
        self._place = ("", -1)
        self._kept: deque[Any] = deque()
        # The first offset whose message may still come.
        self._position = 0

    def batches(self) -> Iterator[dict[str, np.ndarray[Any, Any]]]:
        """The messages of each window.

        Raises:
            RingKerasError: If there are such no longer, a window has none, or brokers
                are silent.
        """
        try:
            for window in self._windows:
                messages = [m for piece in window for m in self._take(piece)]
                if not messages:
                    raise RingKerasError(
                        "[RK520] "
                        "ring_keras.data.shard_kafka: there is no message at "
                        f"{' and '.join(map(str, window))}: the topic is compacted, or "
                        "they are ends of transactions. An empty batch cannot be "
                        "trained on. Start over with a larger `batch_size` and another "
                        "file `offsets`, from the model as it was before this one."
                    )
                yield _columns(messages)
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
                    "[RK520] "
                    f"ring_keras.data.shard_kafka: of {piece}, nothing came from "
                    f"{before} on for {PATIENCE_S:.0f} s. {self._problem}"
                )

    def _accept(self, message: Any, piece: Piece) -> None:
        error = message.error()
        place = message.topic(), message.partition()
        if message.topic() is not None and place != self._place:
            return  # It was on its way when that partition was left.
        if error is None:
            if message.offset() >= self._position:
                self._kept.append(message)
                self._position = message.offset() + 1
        elif error.code() == kafka.KafkaError._PARTITION_EOF:
            # What lies before it, and did not come, is not there: it was compacted, or
            # marks the end of a transaction.
            self._position = max(self._position, message.offset())
        else:
            raise RingKerasError(
                "[RK520] "
                f"ring_keras.data.shard_kafka cannot read {piece}: Kafka says {error}"
            )

    def _note(self, error: Any) -> None:
        self._problem = f"Kafka says {error}"
        if self._error_callback is not None:
            self._error_callback(error)


def _consumer(config: Mapping[str, Any]) -> Any:
    # A consumer must name a group; nothing is subscribed to, so it has no members.
    try:
        return kafka.Consumer({"group.id": "ring_keras", **config, **_SETTINGS})
    except kafka.KafkaException as error:
        raise RingKerasError(f"[RK520] Kafka's client says {error}") from error


def _require_no_error(error: Any) -> None:
    if error is not None:
        raise kafka.KafkaException(error)


def _columns(messages: list[Any]) -> dict[str, np.ndarray[Any, Any]]:
    return {
        "topic": np.array([m.topic().encode() for m in messages], object),
        "partition": np.array([m.partition() for m in messages], np.int32),
        "offset": np.array([m.offset() for m in messages], np.int64),
        "timestamp_ms": np.array([m.timestamp()[1] for m in messages], np.int64),
        "key": np.array([m.key() or b"" for m in messages], object),
        "value": np.array([m.value() or b"" for m in messages], object),
    }
