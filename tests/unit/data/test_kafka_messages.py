"""Which messages come of offsets, some of which have none.

Compacted topics and transactions leave such gaps; the cluster for tests has none, so
the consumer here stands in for Kafka's.
"""

from __future__ import annotations

import pytest

kafka = pytest.importorskip("confluent_kafka", reason="needs the extra kafka")

from ring_keras.data.kafka_messages import KafkaMessages, Piece, cut  # noqa: E402


class Message:
    """At an offset, or the end of a partition there."""

    def __init__(self, partition, offset, is_end=False):
        self._partition = partition
        self._offset = offset
        self._is_end = is_end

    def error(self):
        return (
            kafka.KafkaError(kafka.KafkaError._PARTITION_EOF) if self._is_end else None
        )

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


class Consumer:
    """Brings what a partition has, a few messages at a time."""

    def __init__(self, partitions):
        self._partitions = partitions
        self._left = []
        self.is_closed = False

    def assign(self, places):
        (place,) = places
        offsets = self._partitions[place.partition]
        self._left = [
            Message(place.partition, abs(offset), is_end=offset < 0)
            for offset in offsets
            if abs(offset) >= place.offset
        ]

    def consume(self, count, timeout):
        found = self._left[: min(count, 2)]
        del self._left[: len(found)]
        return found

    def close(self):
        self.is_closed = True


@pytest.mark.parametrize(
    ("partitions", "windows", "expected"),
    [
        # By partition, the offsets that have messages; a negative one is an end.
        ([[0, 1, 2, -3]], [(0, 0, 2), (0, 2, 3)], [[0, 1], [2]]),
        ([[0, 5, 6, -7]], [(0, 0, 3), (0, 3, 6), (0, 6, 7)], [[0], [5], [6]]),
        ([[3, 9, -10]], [(0, 0, 3), (0, 3, 6), (0, 6, 9)], [[], [3], []]),
        ([[0, 1, -6]], [(0, 0, 3), (0, 3, 6)], [[0, 1], []]),
        # An end before what a transaction that is open will bring.
        ([[0, -1, 1, 2, -4]], [(0, 0, 2), (0, 2, 4)], [[0, 1], [2]]),
        # What has come since.
        ([[0, 1, 2, 3, 4, -5]], [(0, 1, 2), (0, 2, 3)], [[1], [2]]),
    ],
)
def test_messages_are_those_of_a_window(monkeypatch, partitions, windows, expected):
    consumer = Consumer(partitions)
    monkeypatch.setattr(kafka, "Consumer", lambda config: consumer)
    pieces = [[Piece("t", *window)] for window in windows]

    batches = list(KafkaMessages({}, pieces).batches())

    assert [[int(value) for value in batch["value"]] for batch in batches] == expected
    assert [batch["offset"].tolist() for batch in batches] == expected
    assert consumer.is_closed


def test_a_window_of_several_partitions(monkeypatch):
    consumer = Consumer([[0, 1, 2, 3], [7, 8, -9]])
    monkeypatch.setattr(kafka, "Consumer", lambda config: consumer)
    windows = [[Piece("t", 0, 1, 3), Piece("t", 1, 6, 8)], [Piece("t", 1, 8, 9)]]

    batches = list(KafkaMessages({}, windows).batches())

    assert [batch["offset"].tolist() for batch in batches] == [[1, 2, 7], [8]]
    assert batches[0]["partition"].tolist() == [0, 0, 1]


def test_pieces_are_cut_by_their_places():
    pieces = [Piece("a", 0, 5, 8), Piece("a", 1, 0, 0), Piece("b", 0, 2, 9)]
    assert cut(pieces, 0, 10) == [pieces[0], pieces[2]]
    assert cut(pieces, 1, 3) == [Piece("a", 0, 6, 8)]
    assert cut(pieces, 2, 5) == [Piece("a", 0, 7, 8), Piece("b", 0, 2, 4)]
    assert cut(pieces, 9, 10) == [Piece("b", 0, 8, 9)]
    assert cut(pieces, 4, 4) == []
