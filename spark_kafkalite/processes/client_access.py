"""What a test needs of the broker or cluster that it has started, as its client: settings, Spark's options, records."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final

from spark_kafkalite.errors import UnknownTopicOrPartition

if TYPE_CHECKING:
    from spark_kafkalite.client.consume.consumer import Consumer
    from spark_kafkalite.model import Record, TopicPartition
    from spark_kafkalite.security.secure_directory import SecureDirectory

RECORDS_TIMEOUT_S: Final = 60.0
_POLL_MS: Final = 100
_SHOWN_VALUES: Final = 5
_SHOWN_BYTES: Final = 40


class ClientAccess(ABC):
    """The client's side of brokers. ``security`` is None where they are open."""

    security: SecureDirectory | None = None

    @property
    @abstractmethod
    def bootstrap(self) -> str:
        """The addresses for ``bootstrap.servers``."""

    @property
    def client_settings(self) -> dict[str, str]:
        """The settings of a client, ``bootstrap.servers`` among them."""
        secured = {} if self.security is None else self.security.client_settings()
        return {"bootstrap.servers": self.bootstrap, **secured}

    @property
    def spark_options(self) -> dict[str, str]:
        """:attr:`client_settings` as options of ``format("kafkalite")`` and ``format("kafka")``."""
        return {f"kafka.{name}": value for name, value in self.client_settings.items()}

    def records(self, topic: str, *, at_least: int = 0, timeout_s: float = RECORDS_TIMEOUT_S) -> list[Record]:
        """Return all records that a topic has now, in the order of partitions and offsets.

        With ``at_least`` it waits until the topic exists and has so many; there may be more. Raises
        UnknownTopicOrPartition for a topic that does not exist, and TimeoutError, with the last values, when it takes
        longer than ``timeout_s``.
        """
        from spark_kafkalite.client.consume.consumer import Consumer

        deadline_s = time.monotonic() + timeout_s
        found: list[Record] = []
        with Consumer({**self.client_settings, "allow.auto.create.topics": False}) as consumer:
            partitions = _partitions(consumer, topic, deadline_s if at_least else None)
            consumer.assign(partitions)
            consumer.seek_to_beginning()
            ends = consumer.end_offsets(partitions)
            while True:
                is_read = all(consumer.position(each) >= end for each, end in ends.items())
                if is_read and len(found) >= at_least:
                    return sorted(found, key=lambda record: (record.partition, record.offset))
                if time.monotonic() > deadline_s:
                    last = ", ".join(_shown(each.value) for each in found[-_SHOWN_VALUES:])
                    wanted = f"and not {at_least}" if is_read else "and its end was not reached"
                    raise TimeoutError(
                        f"after {timeout_s:g} s {len(found)} records of topic {topic} were read, {wanted}; the last "
                        f"values are: {last or 'none'}"
                    )
                if is_read:
                    ends = consumer.end_offsets(partitions)
                found += consumer.poll(_POLL_MS)


def _partitions(consumer: Consumer, topic: str, deadline_s: float | None) -> list[TopicPartition]:
    """Return a topic's partitions; with a deadline, wait for a topic that does not exist yet."""
    while True:
        try:
            return consumer.partitions_for(topic)
        except UnknownTopicOrPartition:
            if deadline_s is None or time.monotonic() > deadline_s:
                raise
            time.sleep(_POLL_MS / 1000)


def _shown(value: bytes | None) -> str:
    return repr(value) if value is None or len(value) <= _SHOWN_BYTES else f"{value[:_SHOWN_BYTES]!r}..."
