"""A Kafka cluster in this process: the one that librdkafka has for tests."""

from __future__ import annotations

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
