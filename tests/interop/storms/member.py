"""One member of a group in a process of its own: reads, processes, commits, and writes down what it does.

    python member.py SETTINGS

``SETTINGS`` is a JSON object: kind (confluent, kafka-python, ours), bootstrap, group, topic, name, journal, assignor
(range, roundrobin, cooperative-sticky), session_ms, heartbeat_ms, seed, instance (group.instance.id or null) and
misdeed (null, or one of MISDEEDS, by which the tests show that they would be seen). Records hold ``PARTITION:OFFSET``.
It commits what it has processed, at random moments and when partitions are taken from it; SIGTERM makes it leave in
order. The events are described in history.py. Only clients are imported here, so that it starts fast.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import time
import warnings
from collections.abc import Iterable
from typing import Any, Protocol

POLL_S = 0.1
COMMIT_TIMEOUT_S = 5.0
# How long a rebalance may wait for members that live. Nobody may need it: those that hear of a rebalance rejoin at
# once, and those that are dead are out when their session is.
MAX_POLL_INTERVAL_MS = 60_000
# What a member may do wrong on purpose, for the tests of the tests.
MISDEEDS = ("skip", "commit-early", "commit-back", "own-more", "zombie")

Polled = list[tuple[int, int, bytes | None]]


class Client(Protocol):
    """A consumer of any library. It calls the member's ``assigned`` and ``revoked`` while it polls."""

    def poll(self) -> Polled:
        """Return (partition, offset, value) of some records."""

    def commit(self, offsets: dict[int, int]) -> None:
        """Commit, and return when it is acknowledged; raise when it is not."""

    def generation(self) -> int: ...

    def close(self) -> None: ...


class Member:
    """What all libraries have in common: the journal, and what is owned, processed and to be committed."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self._journal = os.open(settings["journal"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._random = random.Random(settings["seed"])
        self._owned: set[int] = set()
        self._to_commit: dict[int, int] = {}
        self._commits = 0
        # What a zombie commits in which generation, when that is over.
        self._zombies: list[tuple[int, dict[int, int]]] = []
        self._delivered: dict[int, int] = {}
        self._generation = -1
        self._misdeed = settings["misdeed"]
        self.stopping = False
        self.write("started", instance=settings["instance"])

    def connect(self) -> None:
        self.client: Client = CLIENTS[self.settings["kind"]](self, self.settings)

    def write(self, event: str, **fields: object) -> None:
        line = {"time": time.monotonic_ns(), "member": self.settings["name"], "event": event, **fields}
        os.write(self._journal, json.dumps(line).encode() + b"\n")

    def assigned(self, partitions: Iterable[int], *, incremental: bool) -> None:
        """Take partitions up: in addition to the old ones, or instead of them."""
        self._owned = self._owned | set(partitions) if incremental else set(partitions)
        if self._misdeed == "own-more":
            self._owned = set(range(1000))
        if self._misdeed == "zombie" and self._generation >= 0:
            self._zombies.append((self._generation, dict(self._delivered)))
        self._generation = self.client.generation()
        self.write("assigned", generation=self._generation, partitions=sorted(self._owned))

    def revoked(self, partitions: Iterable[int], *, lost: bool = False) -> None:
        """Give partitions up; what was processed is committed first, unless it is too late for that."""
        gone = set(partitions)
        if not lost:
            self.commit({partition: offset for partition, offset in self._to_commit.items() if partition in gone})
        self._to_commit = {partition: offset for partition, offset in self._to_commit.items() if partition not in gone}
        self._owned -= gone
        self.write("revoked", generation=self.client.generation(), partitions=sorted(gone))

    def commit(self, offsets: dict[int, int]) -> None:
        if not offsets:
            return
        self._commits += 1
        number, generation = self._commits, self.client.generation()
        self.write("committing", number=number, generation=generation, offsets=offsets)
        try:
            self.client.commit(offsets)
        except Exception as error:  # refused, timed out, disconnected: it may be repeated, and is not acknowledged
            self.write("refused", number=number, error=f"{type(error).__name__}: {error}")
        else:
            self.write("committed", number=number, generation=self.client.generation(), offsets=offsets)
            for partition, offset in offsets.items():
                if self._to_commit.get(partition) == offset:
                    del self._to_commit[partition]

    def commit_as_before(self, generation: int, offsets: dict[int, int]) -> None:
        """Commit in a generation that is over, which has to be refused."""
        if not offsets:
            return
        self._commits += 1
        number = self._commits
        self.write("committing", number=number, generation=generation, offsets=offsets)
        try:
            self.client.commit_as(generation, offsets)  # type: ignore[attr-defined]
        except Exception as error:  # as it should be
            self.write("refused", number=number, error=f"{type(error).__name__}: {error}")
        else:
            self.write("committed", number=number, generation=generation, offsets=offsets)

    def run(self) -> None:
        while not self.stopping:
            while self._zombies:
                self.commit_as_before(*self._zombies.pop())
            # A loss may be reported in the middle of a poll that still returns records of before.
            self.deliver(self.client.poll())
            if self._random.random() < 0.3:
                time.sleep(self._random.uniform(0, 0.05))
            if self._random.random() < 0.4:
                self.commit(dict(self._to_commit))
        self.commit(dict(self._to_commit))
        self.client.close()
        self.write("left")

    def deliver(self, records: Polled) -> None:
        ranges: list[list[int]] = []
        for partition, offset, value in records:
            if self._misdeed == "skip" and self._random.random() < 0.05:
                continue
            self.check(partition, offset, value)
            if ranges and ranges[-1][0] == partition and ranges[-1][2] == offset:
                ranges[-1][2] = offset + 1
            else:
                ranges.append([partition, offset, offset + 1])
        for partition, first, following in ranges:
            if self._misdeed == "commit-early":
                self.commit({partition: following})
                time.sleep(0.05)
            self.write("delivered", generation=self._generation, partition=partition, first=first, next=following)
            self._to_commit[partition] = self._delivered[partition] = following
            if self._misdeed == "commit-back" and first > 10:
                self.commit({partition: first - 10})

    def check(self, partition: int, offset: int, value: bytes | None) -> None:
        """Write down a record that does not hold what was written at its offset."""
        if value != b"%d:%d" % (partition, offset):
            self.write("wrong", partition=partition, offset=offset, value=repr(value))


class ConfluentClient:
    def __init__(self, member: Member, settings: dict[str, Any]) -> None:
        import confluent_kafka

        self._member, self._topic = member, settings["topic"]
        self._partition = confluent_kafka.TopicPartition
        self._incremental = settings["assignor"] == "cooperative-sticky"
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": settings["bootstrap"],
                "group.id": settings["group"],
                "client.id": settings["name"],
                "partition.assignment.strategy": settings["assignor"],
                "session.timeout.ms": settings["session_ms"],
                "max.poll.interval.ms": MAX_POLL_INTERVAL_MS,
                "heartbeat.interval.ms": settings["heartbeat_ms"],
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 100,
                "reconnect.backoff.max.ms": 200,
                "socket.timeout.ms": 10_000,
                "log_level": 2,
                **({"group.instance.id": settings["instance"]} if settings["instance"] else {}),
            }
        )
        self._consumer.subscribe(
            [self._topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    def _on_assign(self, consumer: Any, partitions: list[Any]) -> None:
        # Taken up only here, so that nothing is delivered before it is written down.
        self._member.assigned([each.partition for each in partitions], incremental=self._incremental)
        (consumer.incremental_assign if self._incremental else consumer.assign)(partitions)

    def _on_revoke(self, consumer: Any, partitions: list[Any]) -> None:
        self._member.revoked([each.partition for each in partitions])
        self._drop(consumer, partitions)

    def _on_lost(self, consumer: Any, partitions: list[Any]) -> None:
        self._member.revoked([each.partition for each in partitions], lost=True)
        self._drop(consumer, partitions)

    def _drop(self, consumer: Any, partitions: list[Any]) -> None:
        if self._incremental:
            consumer.incremental_unassign(partitions)
        else:
            consumer.unassign()

    def poll(self) -> Polled:
        messages = self._consumer.consume(200, POLL_S)
        return [(each.partition(), each.offset(), each.value()) for each in messages if each.error() is None]

    def commit(self, offsets: dict[int, int]) -> None:
        wanted = [self._partition(self._topic, partition, offset) for partition, offset in offsets.items()]
        for each in self._consumer.commit(offsets=wanted, asynchronous=False):
            if each.error is not None:
                raise RuntimeError(str(each.error))

    def generation(self) -> int:
        metadata = self._consumer.consumer_group_metadata()
        # librdkafka's own form: a magic, then the generation in the machine's byte order.
        assert metadata.startswith(b"CGMDv2:"), metadata
        return int.from_bytes(metadata[7:11], sys.byteorder, signed=True)

    def close(self) -> None:
        self._consumer.close()


def _static_members_first(assignor: Any) -> Any:
    """Return kafka-python's ``assignor``, with members in an order in which it forgets none."""

    class StaticMembersFirst(assignor):  # type: ignore[misc]
        @classmethod
        def assign(cls, cluster: Any, members: list[Any]) -> Any:
            return super().assign(cluster, sorted(members, key=lambda member: member.group_instance_id is None))

    return StaticMembersFirst


class KafkaPythonClient:
    """kafka-python 3.0.12, with what it takes to be a right member.

    It keeps the positions of partitions that it had before a rebalance, with range and roundrobin too
    (SubscriptionState._apply_assignment, which a join leads to): what it has read and not committed is not read again,
    and after a generation that it has missed it reads, and commits, from where it was in the one before. So this member
    seeks to the committed offsets of what it is assigned.

    A leader of kafka-python forgets members with range and roundrobin: it groups the members by whether they are static
    with itertools.groupby, without sorting them first, and keeps the last run of each kind. What it forgets gets no
    partition. So this member's assignors get the static members first.
    """

    def __init__(self, member: Member, settings: dict[str, Any]) -> None:
        warnings.simplefilter("ignore", DeprecationWarning)
        import kafka
        from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
        from kafka.coordinator.assignors.range import RangePartitionAssignor
        from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

        self._member, self._topic = member, settings["topic"]
        self._error = kafka.errors.KafkaError
        self._no_connection, self._timeout = kafka.errors.KafkaConnectionError, kafka.errors.KafkaTimeoutError
        self._partition, self._offset = kafka.TopicPartition, kafka.OffsetAndMetadata
        # Assigned partitions that are still to be read from their committed offsets on.
        self._to_seek: set[int] = set()
        to_seek = self._to_seek
        incremental = settings["assignor"] == "cooperative-sticky"
        assignors = {
            "range": _static_members_first(RangePartitionAssignor),
            "roundrobin": _static_members_first(RoundRobinPartitionAssignor),
            "cooperative-sticky": CooperativeStickyAssignor,
        }
        config = {
            "bootstrap_servers": settings["bootstrap"],
            "group_id": settings["group"],
            "client_id": settings["name"],
            "group_instance_id": settings["instance"],
            "partition_assignment_strategy": (assignors[settings["assignor"]],),
            "session_timeout_ms": settings["session_ms"],
            "max_poll_interval_ms": MAX_POLL_INTERVAL_MS,
            "heartbeat_interval_ms": settings["heartbeat_ms"],
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
            "fetch_max_wait_ms": 100,
            "reconnect_backoff_max_ms": 200,
            "max_poll_records": 200,
        }
        self._consumer = None
        while self._consumer is None and not member.stopping:
            # It has to find a broker at once, and there may be none just now.
            with contextlib.suppress(kafka.errors.KafkaError):
                self._consumer = kafka.KafkaConsumer(**config)

        class Listener(kafka.ConsumerRebalanceListener):  # type: ignore[misc]
            def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
                to_seek.update(each.partition for each in assigned)
                member.assigned([each.partition for each in assigned], incremental=incremental)

            # Called from the thread that does the network: a commit there would wait for itself.
            def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
                to_seek.difference_update(each.partition for each in revoked)
                member.revoked([each.partition for each in revoked], lost=True)

            def on_partitions_lost(self, lost: Iterable[Any]) -> None:
                self.on_partitions_revoked(lost)

        if self._consumer is not None:
            self._consumer.subscribe([self._topic], listener=Listener())
            self._know_partitions()

    def _know_partitions(self) -> None:
        """Ask for the topic's partitions before the first join.

        A leader that has assigned without knowing them joins again when it does. If a poll ends between its assignment
        and the answer to its SyncGroup, ConsumerCoordinator.need_rejoin says no by then, so that nobody takes that
        answer: it waits for ever, without a heartbeat.
        """
        while not self._member.stopping:
            try:
                if self._topic in self._consumer.topics():
                    return
            except self._error:  # the broker is down
                time.sleep(POLL_S)

    def poll(self) -> Polled:
        try:
            polled = self._consumer.poll(timeout_ms=int(POLL_S * 1000))
        except (self._no_connection, self._timeout):  # the broker is down: it is polled again
            time.sleep(POLL_S)
            return []
        # Of partitions that this member keeps over a rebalance they do not come again.
        kept = [
            (each.partition, each.offset, each.value)
            for records in polled.values()
            for each in records
            if each.partition not in self._to_seek
        ]
        self._seek_to_committed()
        return kept

    def _seek_to_committed(self) -> None:
        try:
            for number in sorted(self._to_seek):
                partition = self._partition(self._topic, number)
                self._consumer.seek(partition, self._consumer.committed(partition, timeout_ms=1000) or 0)
                self._to_seek.discard(number)
        except (self._no_connection, self._timeout):  # the rest is sought after the next poll
            time.sleep(POLL_S)

    def commit(self, offsets: dict[int, int]) -> None:
        wanted = {
            self._partition(self._topic, partition): self._offset(offset, "", -1)
            for partition, offset in offsets.items()
        }
        self._consumer.commit(wanted, timeout_ms=int(COMMIT_TIMEOUT_S * 1000))

    def generation(self) -> int:
        return int(self._consumer.group_metadata().generation_id)

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()


class OurClient:
    def __init__(self, member: Member, settings: dict[str, Any]) -> None:
        from spark_kafkalite import Consumer

        self._topic, self._instance = settings["topic"], settings["instance"]
        incremental = settings["assignor"] == "cooperative-sticky"
        self._consumer = Consumer(
            bootstrap_servers=settings["bootstrap"],
            group_id=settings["group"],
            client_id=settings["name"],
            group_instance_id=settings["instance"],
            partition_assignment_strategy=settings["assignor"],
            session_timeout_ms=settings["session_ms"],
            max_poll_interval_ms=MAX_POLL_INTERVAL_MS,
            heartbeat_interval_ms=settings["heartbeat_ms"],
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            fetch_max_wait_ms=100,
        )
        self._consumer.subscribe(
            [self._topic],
            on_assigned=lambda added: member.assigned([each.partition for each in added], incremental=incremental),
            on_revoked=lambda gone: member.revoked([each.partition for each in gone]),
            on_lost=lambda gone: member.revoked([each.partition for each in gone], lost=True),
        )

    def poll(self) -> Polled:
        records = self._consumer.poll(int(POLL_S * 1000), 200)
        return [(each.partition, each.offset, each.value) for each in records]

    def commit(self, offsets: dict[int, int]) -> None:
        wanted = {(self._topic, partition): offset for partition, offset in offsets.items()}
        self._consumer.commit(wanted, timeout_ms=int(COMMIT_TIMEOUT_S * 1000))

    def commit_as(self, generation: int, offsets: dict[int, int]) -> None:
        """Commit as this member was in another generation."""
        from spark_kafkalite.client.group.coordinator_link import CoordinatorLink
        from spark_kafkalite.client.group.offsets import GroupMember, commit_offsets
        from spark_kafkalite.client.network.cluster import ClusterClient
        from spark_kafkalite.client.network.retry import Deadline
        from spark_kafkalite.model import CommittedOffset, TopicPartition

        cluster = ClusterClient(self._consumer.config.client)
        try:
            commit_offsets(
                CoordinatorLink(cluster, str(self._consumer.group_id)),
                {TopicPartition(self._topic, each): CommittedOffset(offset) for each, offset in offsets.items()},
                GroupMember(self._consumer.member_id, generation, self._instance),
                deadline=Deadline.after_ms(COMMIT_TIMEOUT_S * 1000),
            )
        finally:
            cluster.close()

    def generation(self) -> int:
        return self._consumer.generation_id

    def close(self) -> None:
        self._consumer.close()


CLIENTS: dict[str, Any] = {"ours": OurClient, "confluent": ConfluentClient, "kafka-python": KafkaPythonClient}


def main(arguments: list[str]) -> int:
    member = Member(json.loads(arguments[0]))

    def stop(number: int, frame: object) -> None:
        member.stopping = True

    signal.signal(signal.SIGTERM, stop)
    member.connect()
    member.run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
