"""The load of the day: idempotent producers of two libraries, with acks=all, that send more every hour.

Each value is sent once and is unlike all others. With an idempotent producer of the usual patience no record of a
cluster that keeps two of three brokers may fail: an error is a problem.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from typing import Final

import confluent_kafka

from spark_kafkalite import Producer
from spark_kafkalite.client.produce.delivery import RecordMetadata
from tests.cluster_day.part import HOURS, PARTITIONS, TOPIC, Part, Plan

# Records a second of all producers together, in the first hour and in the last.
FIRST_RATE: Final = 50.0
LAST_RATE: Final = 500.0
SENDERS: Final = 2
_MOST_BEHIND_S: Final = 0.5
_FLUSH_S: Final = 150.0
UNKNOWN_OFFSET: Final = -1


def rate_at(hour: int) -> float:
    """Return how many records a second all producers send in an hour of the day (from 0 on)."""
    return FIRST_RATE + (LAST_RATE - FIRST_RATE) * min(hour, HOURS - 1) / (HOURS - 1)


class Sender(Part):
    """``acknowledged`` has partition and offset of each value; ``longest_gap`` is the longest time between two
    acknowledgements in one partition: (seconds, when it ended on the monotonic clock, partition)."""

    def __init__(self, name: str, plan: Plan, bootstrap: str) -> None:
        super().__init__(name)
        self.plan = plan
        self.bootstrap = bootstrap
        self.sent = 0
        self.acknowledged: dict[bytes, tuple[int, int]] = {}
        self.longest_gap = (0.0, 0.0, -1)
        self._last: dict[int, float] = {}

    def run(self) -> None:
        self.open()
        began = due = time.monotonic()
        while not self.stopping.wait(max(due - time.monotonic(), 0)):
            hour = int((time.monotonic() - began) / self.plan.hour_s)
            # Time in which it could not send is not made up for.
            due = max(due + SENDERS / rate_at(hour), time.monotonic() - _MOST_BEHIND_S)
            self.send(b"%s-%d" % (self.name.encode(), self.sent), self.sent % PARTITIONS)
            self.sent += 1
        self.flush()
        if not self.problem and len(self.acknowledged) < self.sent:
            self.problem = f"{self.name}: {self.sent} sent, {len(self.acknowledged)} have an outcome"

    def told(self, value: bytes, partition: int, offset: int | None, error: object) -> None:
        """Note the outcome of a record."""
        if error is not None:
            self.problem = self.problem or f"{self.name}: {value!r} of partition {partition} failed: {error}"
            return
        now = time.monotonic()
        gap = now - self._last.get(partition, now)
        self.longest_gap = max(self.longest_gap, (gap, now, partition))
        self._last[partition] = now
        # A broker that is sent a batch again may remember no more than that it has it.
        self.acknowledged[value] = (partition, UNKNOWN_OFFSET if offset is None else offset)

    @abstractmethod
    def open(self) -> None: ...

    @abstractmethod
    def send(self, value: bytes, partition: int) -> None: ...

    @abstractmethod
    def flush(self) -> None:
        """Wait until everything has an outcome, and close."""


class OurSender(Sender):
    def open(self) -> None:
        self._producer = Producer(bootstrap_servers=self.bootstrap, acks="all", enable_idempotence=True)

    def send(self, value: bytes, partition: int) -> None:
        def delivered(metadata: RecordMetadata | None, error: Exception | None) -> None:
            self.told(value, partition, None if metadata is None else metadata.offset, error)

        self._producer.send(TOPIC, value, partition=partition, on_delivery=delivered)

    def flush(self) -> None:
        self._producer.close(_FLUSH_S)


class ConfluentSender(Sender):
    def open(self) -> None:
        # What goes on between it and a broker is not the program's.
        settings = {"bootstrap.servers": self.bootstrap, "enable.idempotence": True, "acks": "all", "log_level": 0}
        self._producer = confluent_kafka.Producer(settings)

    def send(self, value: bytes, partition: int) -> None:
        def delivered(error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
            self.told(value, partition, None if error is not None else message.offset(), error)

        self._producer.produce(TOPIC, value, partition=partition, on_delivery=delivered)
        # Outcomes come while it polls.
        self._producer.poll(0)

    def flush(self) -> None:
        self._producer.flush(_FLUSH_S)
