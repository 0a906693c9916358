"""Readers: pollers that have every partition assigned by hand, and members of a group that commits what it has read."""

from __future__ import annotations

import itertools
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

import confluent_kafka

from spark_kafkalite import Consumer, Record
from spark_kafkalite.errors import KafkaliteError
from spark_kafkalite.model import TopicPartition
from tests.chaos.clients.client import HARD_END_S, REQUEST_TIMEOUT_MS, ChaosClient, Place
from tests.chaos.history import OK, UNKNOWN, Assigned, Client, Commit, Poll, Seek
from tests.chaos.values import name_of

_POLL_S = 0.2
_COMMIT_TIMEOUT_MS = 10_000
# What librdkafka says between a broken connection and the next one: it goes on by itself.
_NO_ERRORS = (
    confluent_kafka.KafkaError._TRANSPORT,
    confluent_kafka.KafkaError._ALL_BROKERS_DOWN,
    confluent_kafka.KafkaError._TIMED_OUT,
    confluent_kafka.KafkaError._RESOLVE,
)
_unknown = itertools.count(-2, -1)
# partition, offset, payload
Row = tuple[int, int, "bytes | None"]


class ChaosReader(ChaosClient):
    """Notes what it is shown. Once it ``may_end_at`` some offsets it goes on until it is there."""

    def __init__(self, who: str, place: Place) -> None:
        super().__init__(who, place)
        self.positions: dict[int, int] = dict.fromkeys(range(place.partitions), 0)
        self._ends: Mapping[int, int] | None = None
        self._draining = threading.Event()
        self._patience_ends = 0.0

    def may_end_at(self, ends: Mapping[int, int]) -> None:
        """Have it end when it has read to these offsets (by partition), or was shown nothing for a long time."""
        self._ends = ends
        self._patience_ends = time.monotonic() + HARD_END_S
        self._draining.set()

    @property
    def is_done(self) -> bool:
        if self.stopping.is_set():
            return True
        if not self._draining.is_set() or self._ends is None:
            return False
        return self.is_at(self._ends) or time.monotonic() > self._patience_ends

    def is_at(self, ends: Mapping[int, int]) -> bool:
        return all(self.positions[partition] >= end for partition, end in ends.items())

    def note_rows(self, begun: float, rows: Iterable[Row]) -> None:
        by_partition: dict[int, list[tuple[int, str]]] = defaultdict(list)
        for partition, offset, payload in rows:
            by_partition[partition].append((offset, name_of(payload)))
            self.positions[partition] = offset + 1
        ended = time.monotonic()
        if by_partition:
            self._patience_ends = ended + HARD_END_S
        self.place.history.note(
            *(
                Poll(
                    who=self.who, begun=begun, ended=ended, topic=self.place.topic_id, partition=partition,
                    records=records,
                )
                for partition, records in by_partition.items()
            )
        )  # fmt: skip

    def note_commit(self, begun: float, group: str, outcome: str, offsets: Mapping[int, int], generation: int) -> None:
        ended = time.monotonic()
        self.place.history.note(
            *(
                Commit(
                    who=self.who, begun=begun, ended=ended, topic=self.place.topic_id, partition=partition,
                    group=group, offset=offset, outcome=outcome, generation=generation,
                )
                for partition, offset in offsets.items()
            )
        )  # fmt: skip


def _polled(reader: ChaosReader, consumer: Consumer) -> Iterator[list[Record]]:
    """Give what polls of our consumer return, until the reader is done; note failures and poll again."""
    while not reader.is_done:
        begun = time.monotonic()
        try:
            records = consumer.poll(_POLL_S * 1000)
        except KafkaliteError as error:
            reader.note_failure(begun, error)
            reader.stopping.wait(_POLL_S)
            continue
        reader.note_rows(begun, ((record.partition, record.offset, record.value) for record in records))
        yield records


class ChaosPoller(ChaosReader):
    """Reads every partition from offset 0 to the end."""

    def description(self) -> Client:
        return Client(who=self.who, kind="poller", drains=True)

    def note_seeks(self) -> None:
        now = time.monotonic()
        self.place.history.note(
            *(
                Seek(who=self.who, begun=now, ended=now, topic=self.place.topic_id, partition=partition, offset=0)
                for partition in self.positions
            )
        )


class OurPoller(ChaosPoller):
    def run(self) -> None:
        topic = self.place.topic
        with Consumer(
            bootstrap_servers=self.place.bootstrap,
            auto_offset_reset="none",
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            reconnect_backoff_max_ms=200,
        ) as consumer:
            consumer.assign([(topic, partition) for partition in self.positions])
            for partition in self.positions:
                consumer.seek((topic, partition), 0)
            self.note_seeks()
            for _ in _polled(self, consumer):
                pass


class ConfluentPoller(ChaosPoller):
    def run(self) -> None:
        consumer = _confluent_consumer(self.place, "nobody")
        try:
            topic = self.place.topic
            consumer.assign([confluent_kafka.TopicPartition(topic, partition, 0) for partition in self.positions])
            self.note_seeks()
            while not self.is_done:
                begun = time.monotonic()
                self.note_rows(begun, _rows(self, begun, consumer.consume(500, _POLL_S)))
        finally:
            consumer.close()


class OurMember(ChaosReader):
    """A member of a group: it commits after each poll, and waits for that."""

    def __init__(self, who: str, place: Place, group: str) -> None:
        super().__init__(who, place)
        self.group = group

    def description(self) -> Client:
        return Client(who=self.who, kind="member", group=self.group, drains=True)

    def run(self) -> None:
        with Consumer(
            bootstrap_servers=self.place.bootstrap,
            group_id=self.group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=10_000,
            heartbeat_interval_ms=1_000,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            reconnect_backoff_max_ms=200,
            partition_assignment_strategy="range",
        ) as consumer:

            def assigned(_: list[TopicPartition]) -> None:
                self._note_assigned([each.partition for each in consumer.assignment()], consumer.generation_id)

            consumer.subscribe([self.place.topic], on_assigned=assigned)
            for records in _polled(self, consumer):
                if records:
                    self._commit(consumer, {record.partition: record.offset + 1 for record in records})

    def _commit(self, consumer: Consumer, offsets: dict[int, int]) -> None:
        begun = time.monotonic()
        named = {TopicPartition(self.place.topic, partition): offset for partition, offset in offsets.items()}
        generation = consumer.generation_id
        outcome = OK
        try:
            consumer.commit(named, _COMMIT_TIMEOUT_MS)
        except KafkaliteError as error:
            outcome = UNKNOWN
            self.note_failure(begun, error)
        self.note_commit(begun, self.group, outcome, offsets, generation)

    def _note_assigned(self, partitions: list[int], generation: int) -> None:
        now = time.monotonic()
        self.place.history.note(
            Assigned(
                who=self.who, begun=now, ended=now, group=self.group, generation=generation,
                partitions=[self.place.at(partition) for partition in partitions],
            )
        )  # fmt: skip


class ConfluentMember(OurMember):
    """librdkafka does not say its generation: each assignment counts as one of its own, below 0."""

    settings: Mapping[str, object] = {
        "session.timeout.ms": 10_000,
        "heartbeat.interval.ms": 1_000,
        "partition.assignment.strategy": "range",
    }

    def run(self) -> None:
        consumer = _confluent_consumer(self.place, self.group, **{"auto.offset.reset": "earliest", **self.settings})
        consumer.subscribe(
            [self.place.topic],
            on_assign=lambda _, found: self._note_assigned([each.partition for each in found], next(_unknown)),
        )
        try:
            while not self.is_done:
                begun = time.monotonic()
                rows = _rows(self, begun, consumer.consume(500, _POLL_S))
                if rows:
                    self.note_rows(begun, rows)
                    self._commit_confluent(consumer, {partition: offset + 1 for partition, offset, _ in rows})
        finally:
            consumer.close()

    def _commit_confluent(self, consumer: confluent_kafka.Consumer, offsets: dict[int, int]) -> None:
        begun = time.monotonic()
        topic = self.place.topic
        named = [confluent_kafka.TopicPartition(topic, partition, offset) for partition, offset in offsets.items()]
        outcome = OK
        try:
            # Each partition's outcome is its own.
            for each in consumer.commit(offsets=named, asynchronous=False):
                if each.error is not None:
                    raise confluent_kafka.KafkaException(each.error)
        except confluent_kafka.KafkaException as error:
            outcome = UNKNOWN
            self.note_failure(begun, error)
        self.note_commit(begun, self.group, outcome, offsets, -1)


class NewerConfluentMember(ConfluentMember):
    """A member by the newer protocol (KIP-848), in which the coordinator assigns, and sets the times."""

    settings: Mapping[str, object] = {"group.protocol": "consumer"}


def _confluent_consumer(place: Place, group: str, **settings: object) -> confluent_kafka.Consumer:
    return confluent_kafka.Consumer(
        {
            "bootstrap.servers": place.bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "check.crcs": True,
            "socket.timeout.ms": 10_000,
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
            **settings,
        }
    )


def _rows(reader: ChaosReader, begun: float, messages: list[confluent_kafka.Message]) -> list[Row]:
    rows: list[Row] = []
    for message in messages:
        error = message.error()
        if error is None:
            rows.append((message.partition(), message.offset(), message.value()))
        elif error.code() not in _NO_ERRORS and not error.retriable():
            reader.note_failure(begun, error)
    return rows
