"""Which messages come of offsets, some of which have none.

Compacted topics and transactions leave gaps of all kinds, and what was on its way when
a partition was left comes when it likes, which the cluster for tests does not do: the
consumer here stands in for Kafka's.
"""

from __future__ import annotations

import pytest

kafka = pytest.importorskip("confluent_kafka", reason="needs the extra kafka")

import ring_keras as ring  # noqa: E402
from ring_keras.data.kafka_messages import (  # noqa: E402
    KafkaMessages,
    require_settings,
)
from ring_keras.data.kafka_pass import Piece  # noqa: E402


class Message:
    """At an offset, or the end of a partition there."""

    def __init__(self, partition, offset, code=None):
        self._partition = partition
        self._offset = offset
        self._code = code

    def error(self):
        return None if self._code is None else kafka.KafkaError(self._code)

    def topic(self):
        return "t"

    def partition(self):
        return self._partition

    def offset(self):
        return self._offset

    def timestamp(self):
        return kafka.TIMESTAMP_CREATE_TIME, 1

    def key(self):
        return None

    def value(self):
        return b"%d" % self._offset


def end(partition, offset):
    return Message(partition, offset, kafka.KafkaError._PARTITION_EOF)


class Consumer:
    """Brings what a partition has, a few messages at a time."""

    def __init__(self, partitions, before=()):
        self._partitions = partitions
        self._before = list(before)
        self._left = []
        self.is_closed = False

    def assign(self, places):
        (place,) = places
        offsets = self._partitions[place.partition]
        self._left = [
            end(place.partition, -offset)
            if offset < 0
            else Message(place.partition, offset)
            for offset in offsets
            if abs(offset) >= place.offset
        ]
        if place.partition:
            self._left = self._before + self._left

    def consume(self, count, timeout):
        found = self._left[: min(count, 2)]
        del self._left[: len(found)]
        return found

    def close(self):
        self.is_closed = True


def read(monkeypatch, consumer, windows):
    monkeypatch.setattr(kafka, "Consumer", lambda config: consumer)
    ends = {}
    for window in windows:
        for piece in window:
            first = ends.get(piece.partition, piece).first
            ends[piece.partition] = piece._replace(first=first)
    return list(KafkaMessages({}, list(ends.values()), windows).batches())


@pytest.mark.parametrize(
    ("partitions", "windows", "expected"),
    [
        # By partition, the offsets that have messages; a negative one is an end.
        ([[0, 1, 2, -3]], [(0, 0, 2), (0, 2, 3)], [[0, 1], [2]]),
        ([[0, 5, 6, -7]], [(0, 0, 3), (0, 3, 6), (0, 6, 7)], [[0], [5], [6]]),
        ([[3, 9, -10]], [(0, 0, 5), (0, 5, 10)], [[3], [9]]),
        ([[0, 1, 3, -6]], [(0, 0, 3), (0, 3, 6)], [[0, 1], [3]]),
        # An end before what a transaction that is open will bring.
        ([[0, -1, 1, 2, -4]], [(0, 0, 2), (0, 2, 4)], [[0, 1], [2]]),
        # What has come since.
        ([[0, 1, 2, 3, 4, -5]], [(0, 1, 2), (0, 2, 3)], [[1], [2]]),
        # Twice, as after the broker was asked again.
        ([[0, 1, 0, 1, 2, -3]], [(0, 0, 2), (0, 2, 3)], [[0, 1], [2]]),
    ],
)
def test_messages_are_those_of_a_window(monkeypatch, partitions, windows, expected):
    consumer = Consumer(partitions)

    batches = read(monkeypatch, consumer, [[Piece("t", *w)] for w in windows])

    assert [[int(value) for value in batch["value"]] for batch in batches] == expected
    assert [batch["offset"].tolist() for batch in batches] == expected
    assert consumer.is_closed


@pytest.mark.parametrize("offsets", [[3, 9, -10], [0, 1, -9], [8, -9]])
def test_a_window_without_messages_is_an_error(monkeypatch, offsets):
    consumer = Consumer([offsets])
    windows = [[Piece("t", 0, first, first + 3)] for first in (0, 3, 6)]

    with pytest.raises(ring.RingKerasError, match="no message at offsets"):
        read(monkeypatch, consumer, windows)

    assert consumer.is_closed


@pytest.mark.parametrize(
    "left",
    [
        end(0, 9),
        Message(0, 7),
        Message(0, 7, kafka.KafkaError.UNKNOWN_TOPIC_OR_PART),
    ],
)
def test_what_comes_of_a_partition_that_was_left_is_not_read(monkeypatch, left):
    consumer = Consumer([[0, 1, 2, 3], [7, 8, -9]], before=[left])
    windows = [[Piece("t", 0, 1, 3), Piece("t", 1, 6, 8)], [Piece("t", 1, 8, 9)]]

    batches = read(monkeypatch, consumer, windows)

    assert [batch["offset"].tolist() for batch in batches] == [[1, 2, 7], [8]]
    assert batches[0]["partition"].tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    "config",
    [
        {"enable.auto.commit": True},
        {"enable.partition.eof": "false"},
        {"auto.offset.reset": "earliest"},
        {"default.topic.config": {"auto.offset.reset": "smallest"}},
        {"group.protocol": "consumer"},
    ],
)
def test_settings_that_are_ours_are_not_replaced_in_silence(config):
    with pytest.raises(ValueError, match="cannot have"):
        require_settings(config)


def test_settings_that_say_the_same_are_taken():
    require_settings({"enable.auto.commit": "False", "group.id": "mine"})
