"""Producers and a group of consumers that work on while brokers change their version, and what must hold of both.

The numbers 0, 1, 2... go to the partitions of a topic in turn: number n to partition n modulo PARTITIONS. So a member
that has the same partitions all the time reads the numbers of each remainder in order, and each once.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

import confluent_kafka

from spark_kafkalite import Admin, Consumer, Producer, TopicPartition
from spark_kafkalite.client.admin.admin import NewTopic
from tests.interop.cluster.streams import Stream
from tests.interop.groups.group_clients import GroupMember
from tests.patience import PATIENCE_S, wait_until

# The first replicas are one on each broker, so that each broker leads something.
ASSIGNMENTS: Final = {0: [1, 2, 3], 1: [2, 3, 1], 2: [3, 1, 2]}
PARTITIONS: Final = len(ASSIGNMENTS)
# How many records each producer has acknowledged, and each group read, before the next step.
_STEP: Final = 30


class OurProducer(Stream):
    def work(self) -> None:
        with Producer(bootstrap_servers=self.bootstrap) as producer:
            while self.pace():
                producer.send(
                    self.topic,
                    b"%d" % self.sent,
                    partition=self.sent % PARTITIONS,
                    on_delivery=lambda _, error: self.told(error),
                )
                self.sent += 1


class ConfluentProducer(Stream):
    def work(self) -> None:
        # What goes on between it and a broker is not the program's.
        settings = {"bootstrap.servers": self.bootstrap, "enable.idempotence": True, "log_level": 0}
        producer = confluent_kafka.Producer(settings)
        while self.pace():
            producer.produce(
                self.topic,
                b"%d" % self.sent,
                partition=self.sent % PARTITIONS,
                on_delivery=lambda error, _: self.told(error),
            )
            self.sent += 1
            producer.poll(0)
        assert producer.flush(PATIENCE_S) == 0


class OurMember(GroupMember):
    def consume(self) -> None:
        settings: dict[str, Any] = {"auto_offset_reset": "earliest", "auto_commit_interval_ms": 200}
        with Consumer(bootstrap_servers=self.bootstrap, group_id=self.group, **settings) as consumer:
            consumer.subscribe([self.topic], on_assigned=self.assigned, on_revoked=self.revoked)
            while not self.leaving:
                self.values += [record.value or b"" for record in consumer.poll(50)]


class ConfluentMember(GroupMember):
    def consume(self) -> None:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": self.group,
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 200,
                "fetch.wait.max.ms": 50,
                "log_level": 0,
            }
        )
        consumer.subscribe(
            [self.topic],
            on_assign=lambda _, partitions: self.assigned(partitions),
            on_revoke=lambda _, partitions: self.revoked(partitions),
        )
        try:
            while not self.leaving:
                message = consumer.poll(0.05)
                # Errors that pass, as of a broker that has gone, come here too: what counts is what is read.
                if message is not None and message.error() is None:
                    self.values.append(message.value())
        finally:
            consumer.close()


class Load:
    """A producer of each project, and a group of two members on the topic of each."""

    def __init__(self, bootstrap: str, directory: Path) -> None:
        self._admin = Admin(bootstrap_servers=bootstrap)
        self._streams: list[Stream] = []
        self._groups: list[list[GroupMember]] = []
        kinds: list[tuple[str, type[Stream], type[GroupMember]]] = [
            ("ours", OurProducer, OurMember),
            ("confluent", ConfluentProducer, ConfluentMember),
        ]
        self._admin.create_topics([NewTopic(name, assignments=ASSIGNMENTS) for name, _, _ in kinds])
        for name, stream, member in kinds:
            self._groups.append([member(bootstrap, f"readers-of-{name}", name) for _ in range(2)])
            self._streams.append(stream(bootstrap, name, directory))
        wait_until(lambda: all(map(_is_shared, self._groups)), "the members to have their partitions")
        self._assignments = [[one.assignments for one in members] for members in self._groups]
        self.goes_on()

    def goes_on(self) -> None:
        """Wait until each producer has some more acknowledgements, and each group has read what was sent until then."""
        wanted = {stream.topic: stream.acknowledged + _STEP for stream in self._streams}
        wait_until(
            lambda: all(each.acknowledged >= wanted[each.topic] for each in self._streams),
            lambda: f"{wanted} acknowledgements: {[str(each) for each in self._streams]}",
        )
        for members in self._groups:
            wait_until(
                lambda members=members: len(_values(members)) >= wanted[members[0].topic],  # type: ignore[misc]
                lambda members=members: f"{wanted} to be read, and {len(_values(members))} are",  # type: ignore[misc]
            )

    def check(self) -> None:
        """End the load. No record is lost, doubled or out of order; no member was ever without its partitions."""
        for stream in self._streams:
            stream.stop()
            assert stream.errors == [], f"{stream} got errors"
            assert stream.acknowledged == stream.sent
        for stream, members, assignments in zip(self._streams, self._groups, self._assignments, strict=True):
            wait_until(
                lambda s=stream, m=members: sorted(_values(m)) == list(range(s.sent)),  # type: ignore[misc]
                lambda s=stream, m=members: f"{s.sent} of {s.topic} to be read once, of {len(_values(m))}",  # type: ignore[misc]
            )
            for one in members:
                of_partition: dict[int, list[int]] = defaultdict(list)
                for value in one.values:
                    of_partition[int(value) % PARTITIONS].append(int(value))
                for partition, values in of_partition.items():
                    assert all(a < b for a, b in itertools.pairwise(values)), f"{stream.topic}-{partition}: {values}"
            assert [one.assignments for one in members] == assignments, f"the group of {stream.topic} was rebalanced"
            for one in members:
                one.leave()
            # A member that leaves commits what it has read.
            committed = self._admin.group_offsets(members[0].group)
            assert {each.partition: found.offset for each, found in committed.items()} == {
                number: len(range(number, stream.sent, PARTITIONS)) for number in ASSIGNMENTS
            }
            self._check_log(stream)

    def _check_log(self, stream: Stream) -> None:
        with Consumer(bootstrap_servers=stream.bootstrap) as consumer:
            consumer.assign([TopicPartition(stream.topic, number) for number in ASSIGNMENTS])
            consumer.seek_to_beginning()
            found: dict[int, list[int]] = defaultdict(list)
            while sum(map(len, found.values())) < stream.sent:
                records = consumer.poll(int(PATIENCE_S * 1000))
                assert records, f"{stream.topic} has {sum(map(len, found.values()))} of {stream.sent} records"
                for record in records:
                    found[record.partition].append(int(record.value or b"-1"))
        assert found == {number: list(range(number, stream.sent, PARTITIONS)) for number in ASSIGNMENTS}

    def close(self) -> None:
        """End what still works, without a judgement."""
        self._admin.close()
        for stream in self._streams:
            stream._stopping.set()
        for one in itertools.chain(*self._groups):
            one._leave.set()


def _is_shared(members: list[GroupMember]) -> bool:
    # The first one may have had all of them for a moment.
    return all(one.owned for one in members) and sum(len(one.owned) for one in members) == PARTITIONS


def _values(members: list[GroupMember]) -> list[int]:
    return [int(value) for one in members for value in list(one.values)]
