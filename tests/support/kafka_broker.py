"""A Kafka cluster in this process: the one that librdkafka has for tests."""

from __future__ import annotations

from collections.abc import Iterable

import confluent_kafka as kafka

# Of each topic.
PARTITIONS = 4


class Broker:
    """Serves as long as it lives, on this host alone."""

    def __init__(self) -> None:
        self._producer = kafka.Producer({"test.mock.num.brokers": 1})
        brokers = self._producer.list_topics(timeout=30).brokers.values()
        self.config = {
            "bootstrap.servers": ",".join(f"{b.host}:{b.port}" for b in brokers)
        }

    def write(self, topic: str, counts: list[int], first: int = 0) -> None:
        """So many messages into each partition, with numbers from `first` on."""
        number = first
        for partition, count in enumerate(counts):
            values = [f"{value}" for value in range(number, number + count)]
            self.write_values(topic, partition, values)
            number += count

    def write_values(self, topic: str, partition: int, values: list[str]) -> None:
        """A message for each, with a key that follows from it."""
        for value in values:
            self._producer.produce(
                topic, partition=partition, key=f"key {value}", value=value
            )
        assert self._producer.flush(30) == 0

    @staticmethod
    def send(config: dict[str, str], topic: str, numbers: Iterable[int]) -> None:
        """From another process: a message for each, to the first two partitions."""
        producer = kafka.Producer(config)
        for number in numbers:
            producer.produce(topic, partition=number % 2, value=f"{number}")
        assert producer.flush(30) == 0

    def write_in_transactions(
        self, topic: str, partition: int, values: list[str], at_once: int = 1
    ) -> None:
        """A message for each; each `at_once` are followed by as many empty offsets.

        A transaction ends with a mark at an offset, which is no message.
        """
        producers = [self._transactional(f"{topic} {n}") for n in range(at_once)]
        for first in range(0, len(values), at_once):
            used = producers[: len(values) - first]
            for producer, value in zip(used, values[first:], strict=False):
                producer.begin_transaction()
                producer.produce(
                    topic, partition=partition, key=f"key {value}", value=value
                )
                assert producer.flush(30) == 0
            for producer in used:
                producer.commit_transaction(30)

    def _transactional(self, name: str) -> kafka.Producer:
        producer = kafka.Producer({**self.config, "transactional.id": name})
        producer.init_transactions(30)
        return producer
