"""Members of a group that are consumers of the Python libraries, each in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import Iterable
from typing import Any

import aiokafka
import confluent_kafka

from tests.patience import PATIENCE_S

with warnings.catch_warnings():
    # It reads its schemas with a function that Python 3.11 deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka

SESSION_MS = 6_000
HEARTBEAT_MS = 300
_POLL_S = 0.05
# kafka-python 3.0.12 throws away an answer that comes between two polls, and joins again
# (BaseCoordinator.join_group_async, when _join_task is done): a rebalance more, with Apache Kafka as with us.
_KAFKA_PYTHON_POLL_S = 1.0


class GroupMember(threading.Thread):
    """A consumer that subscribes, reads until it is told to leave, and says what it owns. Kinds derive from it."""

    def __init__(
        self, bootstrap: str, group: str, topic: str, *, instance: str | None = None, commit: bool = False
    ) -> None:
        super().__init__(daemon=True)
        self.bootstrap, self.group, self.topic, self.instance = bootstrap, group, topic, instance
        self.commit = commit
        self.owned: set[int] = set()
        self.assignments = 0
        self.values: list[bytes] = []
        self.error: BaseException | None = None
        self._leave = threading.Event()
        self.start()

    def run(self) -> None:
        try:
            self.consume()
        except BaseException as error:  # ``leave`` shows it
            self.error = error

    def consume(self) -> None:
        raise NotImplementedError

    def assigned(self, partitions: Iterable[Any]) -> None:
        self.owned = {one if isinstance(one, int) else one.partition for one in partitions}
        self.assignments += 1

    def revoked(self, partitions: Iterable[Any]) -> None:
        self.owned = set()

    @property
    def leaving(self) -> bool:
        return self._leave.is_set()

    def leave(self) -> None:
        """Close the consumer, which leaves the group unless it is static."""
        self._leave.set()
        self.join(PATIENCE_S)
        assert not self.is_alive(), "the consumer does not close"
        if self.error is not None:
            raise self.error


class Confluent(GroupMember):
    assignor = "range"

    def consume(self) -> None:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": self.group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": HEARTBEAT_MS,
                "partition.assignment.strategy": self.assignor,
                "fetch.wait.max.ms": 50,
                **({"group.instance.id": self.instance} if self.instance else {}),
            }
        )
        consumer.subscribe(
            [self.topic],
            on_assign=lambda _, partitions: self.assigned(partitions),
            on_revoke=lambda _, partitions: self.revoked(partitions),
        )
        try:
            while not self.leaving:
                message = consumer.poll(_POLL_S)
                if message is None:
                    continue
                if message.error() is not None:
                    raise confluent_kafka.KafkaException(message.error())
                self.values.append(message.value())
            if self.commit:
                self.commit_positions(consumer)
        finally:
            consumer.close()

    def commit_positions(self, consumer: confluent_kafka.Consumer) -> None:
        try:
            consumer.commit(asynchronous=False)
        except confluent_kafka.KafkaException as error:
            # Nothing was read of what it owns now.
            if error.args[0].code() != confluent_kafka.KafkaError._NO_OFFSET:
                raise


class CooperativeConfluent(Confluent):
    assignor = "cooperative-sticky"

    def assigned(self, partitions: Iterable[Any]) -> None:
        self.owned = self.owned | {one.partition for one in partitions}
        self.assignments += 1

    def revoked(self, partitions: Iterable[Any]) -> None:
        self.owned = self.owned - {one.partition for one in partitions}


def _settings(member: GroupMember) -> dict[str, Any]:
    """The settings of kafka-python, whose names aiokafka has too."""
    return {
        "bootstrap_servers": member.bootstrap,
        "group_id": member.group,
        "group_instance_id": member.instance,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "session_timeout_ms": SESSION_MS,
        "heartbeat_interval_ms": HEARTBEAT_MS,
        "fetch_max_wait_ms": 50,
    }


class _Told:
    """Passes on to a member what its library tells a listener."""

    def __init__(self, member: GroupMember) -> None:
        self._member = member

    def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        self._member.assigned(assigned)

    def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
        self._member.revoked(revoked)


class _KafkaPythonListener(_Told, kafka.ConsumerRebalanceListener):  # type: ignore[misc]
    pass


class _AiokafkaListener(_Told, aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]
    pass


class KafkaPython(GroupMember):
    def consume(self) -> None:
        consumer = kafka.KafkaConsumer(**_settings(self))
        consumer.subscribe([self.topic], listener=_KafkaPythonListener(self))
        # A leader that does not know the partitions yet would join again as soon as it does, and wait for ever if a
        # poll ended between its assignment and the SyncGroup's answer (ConsumerCoordinator.need_rejoin is false then).
        consumer.topics()
        try:
            while not self.leaving:
                for records in consumer.poll(timeout_ms=int(_KAFKA_PYTHON_POLL_S * 1000)).values():
                    self.values += [record.value for record in records]
            if self.commit:
                consumer.commit()
        finally:
            consumer.close()


class Aiokafka(GroupMember):
    def consume(self) -> None:
        asyncio.run(self._consume())

    async def _consume(self) -> None:
        consumer = aiokafka.AIOKafkaConsumer(**_settings(self))
        consumer.subscribe([self.topic], listener=_AiokafkaListener(self))
        await consumer.start()
        try:
            while not self.leaving:
                for records in (await consumer.getmany(timeout_ms=int(_POLL_S * 1000))).values():
                    self.values += [record.value for record in records]
            if self.commit:
                await consumer.commit()
        finally:
            await consumer.stop()


KINDS = {
    "confluent": Confluent,
    "confluent-cooperative": CooperativeConfluent,
    "kafka-python": KafkaPython,
    "aiokafka": Aiokafka,
}
