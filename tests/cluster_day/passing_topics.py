"""Topics that are made, written, read by a group of their own, and deleted with it, all day, under few names."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

import confluent_kafka

from spark_kafkalite import Admin, Consumer, Producer
from spark_kafkalite.errors import (
    GroupIdNotFound,
    InvalidReplicationFactor,
    KafkaliteError,
    NonEmptyGroup,
    UnknownTopicOrPartition,
)
from tests.cluster_day.part import Part, PartFailed, Plan

PREFIX: Final = "passing-"
_NAMES: Final = 5
_PATIENCE_S: Final = 90.0
_AGAIN_S: Final = 0.5
# While a broker is away there are too few of them for some topics. Clients say once that they leave: where the
# coordinator moves meanwhile, a member is one until its session ends, and each move begins that anew. So it is short.
_SESSION_MS: Final = 6_000
_PASSING_ERRORS: Final = (InvalidReplicationFactor, NonEmptyGroup)
_POLL_S: Final = 0.2
Read = dict[tuple[int, int], "bytes | None"]  # by partition and offset


class PassingTopics(Part):
    """``rounds`` counts topics that came and went; ``errors`` what was tried again, as a program of a user would."""

    def __init__(self, plan: Plan, bootstrap: str) -> None:
        super().__init__("passing topics")
        self._plan = plan
        self._bootstrap = bootstrap
        self._chance = plan.chance(self.name)
        self.rounds = 0
        self.errors: Counter[str] = Counter()

    def run(self) -> None:
        with Admin(bootstrap_servers=self._bootstrap) as admin:
            for number in itertools.count():
                if self.stopping.wait(self._chance.uniform(0.3, 1.5)):
                    return
                self._play_round(admin, number)
                self.rounds += 1

    def _play_round(self, admin: Admin, number: int) -> None:
        topic, group = f"{PREFIX}{number % _NAMES}", f"{PREFIX}group-{number}"
        partitions, replicas = self._chance.randint(1, 4), self._chance.choice((2, 3))
        configs = {"min.insync.replicas": str(replicas - 1)}
        values = {b"%s-%d-%d" % (topic.encode(), number, each) for each in range(self._chance.randint(10, 200))}
        # It is gone since it was deleted: if it exists, a request has been sent again that had been carried out.
        self._persist(lambda: admin.create_topic(topic, partitions, replicas, configs, if_not_exists=True))
        with Producer(bootstrap_servers=self._bootstrap, acks="all") as producer:
            deliveries = [producer.send(topic, value) for value in sorted(values)]
            producer.flush(_PATIENCE_S)
            for delivery in deliveries:
                delivery.result(0)
        read = self._read_as_ours if number % 2 else self._read_as_confluent
        found = read(topic, group, len(values))
        if sorted(found.values()) != sorted(values):
            raise PartFailed(f"{topic} in round {number}: {len(values)} written, {len(found)} read, other ones")
        self._persist(lambda: admin.delete_groups([group]), done=GroupIdNotFound)
        self._persist(lambda: admin.delete_topics([topic]), done=UnknownTopicOrPartition)
        self._persist(lambda: _check_gone(admin, topic))

    def _persist(self, act: Callable[[], None], done: type[KafkaliteError] | None = None) -> None:
        """Do something, again after an error that passes; ``done`` is the one that says that it was done before."""
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                act()
                return
            except KafkaliteError as error:
                if done is not None and isinstance(error, done):
                    return
                if not (error.retriable or isinstance(error, _PASSING_ERRORS)) or time.monotonic() > deadline:
                    raise
                self.errors[type(error).__name__] += 1
            time.sleep(_AGAIN_S)

    def _read_as_ours(self, topic: str, group: str, count: int) -> Read:
        found: Read = {}
        deadline = time.monotonic() + _PATIENCE_S
        with Consumer(
            bootstrap_servers=self._bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=_SESSION_MS,
            heartbeat_interval_ms=_SESSION_MS // 3,
        ) as consumer:
            consumer.subscribe([topic])
            while len(found) < count:
                found |= {(each.partition, each.offset): each.value for each in consumer.poll(_POLL_S * 1000)}
                self._check(topic, found, count, deadline)
            consumer.commit()
        return found

    def _read_as_confluent(self, topic: str, group: str, count: int) -> Read:
        found: Read = {}
        deadline = time.monotonic() + _PATIENCE_S
        settings = {
            "bootstrap.servers": self._bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": _SESSION_MS,
            "heartbeat.interval.ms": _SESSION_MS // 3,
            "log_level": 0,
        }
        consumer = confluent_kafka.Consumer(settings)
        consumer.subscribe([topic])
        try:
            while len(found) < count:
                # An error is of a connection or of a topic that it has not heard of yet: it goes on by itself.
                messages = [each for each in consumer.consume(100, _POLL_S) if each.error() is None]
                found |= {(each.partition(), each.offset()): each.value() for each in messages}
                self._check(topic, found, count, deadline)
        finally:
            consumer.close()
        return found

    def _check(self, topic: str, found: Read, count: int, deadline: float) -> None:
        if time.monotonic() > deadline:
            raise PartFailed(f"{topic}: {len(found)} of {count} records read in {_PATIENCE_S:.0f} s")


class _StillThere(KafkaliteError):
    """A broker still shows a topic that was deleted."""

    retriable = True


def _check_gone(admin: Admin, topic: str) -> None:
    if topic in admin.list_topics():
        raise _StillThere(f"{topic} is still there after its deletion")
