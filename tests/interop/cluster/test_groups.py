"""Groups whose coordinator moves: members go on as they are, and commits are where they were acknowledged."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_kafkalite import Admin, Consumer, Producer, TopicPartition
from spark_kafkalite.coordinator.internal_topic import partition_for
from spark_kafkalite.errors import KafkaliteError
from spark_kafkalite.processes.kafkalite_cluster import KafkaliteCluster
from spark_kafkalite.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tests.conftest import fetch_or_skip
from tests.interop.cluster.programs import KAFKA_PYTHON, follow, java_tool
from tests.interop.groups import group_clients
from tests.interop.groups.group_clients import HEARTBEAT_MS, Confluent, GroupMember
from tests.interop.support.raw_client import RawClient
from tests.lab import apache_kafka as apache_kafka_part
from tests.lab import jars
from tests.patience import PATIENCE_S, wait_until

pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning")]

# As clients have it by default: a member that does not run for some seconds, as on a busy machine, stays in its group.
SESSION_MS = 45_000
OFFSETS = "__consumer_offsets"
OFFSETS_PARTITIONS = 10
PARTITIONS = 3
_numbers = itertools.count()


class Ours(GroupMember):
    def consume(self) -> None:
        with Consumer(
            bootstrap_servers=self.bootstrap,
            group_id=self.group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
        ) as consumer:
            consumer.subscribe([self.topic], on_assigned=self.assigned, on_revoked=self.revoked)
            while not self.leaving:
                self.values += [record.value or b"" for record in consumer.poll(50)]


class _Program(GroupMember):
    """A consumer in a process of its own, which says in lines of JSON what it has been given and read."""

    directory: Path

    def command(self) -> list[str]:
        raise NotImplementedError

    def consume(self) -> None:
        follow(self.command(), self.directory, f"{type(self).__name__}-{self.name}", self._heard, lambda: self.leaving)

    def _heard(self, said: dict[str, Any]) -> None:
        match said["name"]:
            case "partitions_assigned":
                self.assigned([each["partition"] for each in said["partitions"]])
            case "partitions_revoked" if not self.leaving:
                self.revoked(())
            case "record_data":
                self.values.append(str(said["value"]).encode())


class KafkaPython(_Program):
    def command(self) -> list[str]:
        member = [self.bootstrap, self.topic, self.group, str(SESSION_MS), str(HEARTBEAT_MS)]
        return [*KAFKA_PYTHON, "consume", *member]


class Java(_Program):
    def command(self) -> list[str]:
        config = self.directory / f"{self.name}.properties"
        config.write_text(f"session.timeout.ms={SESSION_MS}\nheartbeat.interval.ms={HEARTBEAT_MS}\n", encoding="ascii")
        arguments = {
            "--bootstrap-server": self.bootstrap,
            "--topic": self.topic,
            "--group-id": self.group,
            "--reset-policy": "earliest",
            "--command-config": str(config),
        }
        return java_tool("org.apache.kafka.tools.VerifiableConsumer", arguments, "--verbose")


def same_coordinator(count: int) -> list[str]:
    """Return names of groups that one broker coordinates, whoever it is."""
    number = next(_numbers)
    names = (f"moving-{number}-{n}" for n in itertools.count())
    return list(itertools.islice((name for name in names if partition_for(name, OFFSETS_PARTITIONS) == 3), count))


def coordinator(cluster: KafkaliteCluster, group: str) -> int:
    return cluster.wait_for_leader(OFFSETS, partition_for(group, OFFSETS_PARTITIONS))


@pytest.fixture
def groups(
    cluster: KafkaliteCluster, new_topic: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, list[GroupMember]]]:
    """A group of each project's consumers on a topic of its own, all with one coordinator; each has its partitions."""
    kinds: dict[str, type[GroupMember]] = {"ours": Ours, "confluent-kafka": Confluent, "kafka-python": KafkaPython}
    if apache_kafka_part.available() is None:
        fetch_or_skip(jars.APACHE_KAFKA)
        kinds["java"] = Java
    _Program.directory = tmp_path
    monkeypatch.setattr(group_clients, "SESSION_MS", SESSION_MS)
    names = same_coordinator(len(kinds))
    members: dict[str, list[GroupMember]] = {}
    for group, (name, kind) in zip(names, kinds.items(), strict=True):
        topic = new_topic(PARTITIONS)
        # One JVM is enough; the others show how a group of two stays as it is.
        count = 1 if kind is Java else 2
        members[name] = [kind(cluster.bootstrap, group, topic) for _ in range(count)]
    for name, together in members.items():

        def all_have_some(together: list[GroupMember] = together) -> bool:
            # The first one may have had all of them for a moment.
            owned = sorted(n for one in together for n in one.owned)
            return owned == list(range(PARTITIONS)) and all(one.owned for one in together)

        wait_until(all_have_some, f"{name} to have its partitions")
    yield members
    for one in itertools.chain(*members.values()):
        one.leave()


def send(cluster: KafkaliteCluster, groups: dict[str, list[GroupMember]], first: int) -> None:
    """Send 30 numbers to each topic and wait until each is read by one member."""
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for members in groups.values():
            for n in range(first, first + 30):
                producer.send(members[0].topic, b"%d" % n, partition=n % PARTITIONS)
        producer.flush(PATIENCE_S)
    wanted = sorted(range(first + 30))
    for name, members in groups.items():

        def read(members: list[GroupMember] = members) -> list[int]:
            return sorted(int(value) for one in members for value in list(one.values))

        def missing(name: str = name, read: Callable[[], list[int]] = read) -> str:
            found = read()
            lacking = sorted(set(wanted) - set(found))
            return f"{name} to read {len(wanted)} once: it lacks {lacking}, and has {len(found)} with doubles"

        wait_until(lambda read=read: read() == wanted, missing)  # type: ignore[misc]


def test_members_go_on_when_their_coordinator_moves(
    cluster: KafkaliteCluster, groups: dict[str, list[GroupMember]], admin: Admin
) -> None:
    send(cluster, groups, 0)
    before = {name: [(one.assignments, sorted(one.owned)) for one in members] for name, members in groups.items()}
    ids = {name: {each.member_id for each in described(admin, members).members} for name, members in groups.items()}
    group = groups["ours"][0].group
    for number, end in enumerate((cluster.stop, cluster.kill), 1):
        former = coordinator(cluster, group)
        end(former)
        cluster.wait_for_leader(OFFSETS, partition_for(group, OFFSETS_PARTITIONS), other_than=former)
        send(cluster, groups, 30 * number)
        # A member that the new coordinator does not know joins again at its next heartbeat.
        time.sleep(3 * HEARTBEAT_MS / 1000)
        for members in groups.values():
            assert described(admin, members).state == "Stable"
        cluster.restart(former)
        cluster.wait_in_sync()
    for name, members in groups.items():
        assert [(one.assignments, sorted(one.owned)) for one in members] == before[name], f"{name} was rebalanced"
        shown = described(admin, members)
        assert (shown.state, {each.member_id for each in shown.members}) == ("Stable", ids[name])


def described(admin: Admin, members: list[GroupMember]):  # type: ignore[no-untyped-def]
    return admin.describe_groups([members[0].group])[members[0].group]


def test_acknowledged_commits_survive_their_coordinator(
    cluster: KafkaliteCluster, new_topic: Callable[..., str]
) -> None:
    partition = TopicPartition(new_topic(), 0)
    (group,) = same_coordinator(1)
    asked, acknowledged = [0], [0]
    stopping = threading.Event()
    problems: list[str] = []

    def commit_forever() -> None:
        with committer(cluster, group) as consumer:
            consumer.assign([partition])
            while not stopping.is_set():
                asked[0] += 1
                try:
                    consumer.commit({partition: asked[0]})
                except KafkaliteError as error:
                    problems.append(str(error))
                    continue
                acknowledged[0] = asked[0]

    committing = threading.Thread(target=commit_forever)
    committing.start()
    try:
        for end in (cluster.kill, cluster.stop):
            wait_until(lambda reached=acknowledged[0] + 50: acknowledged[0] > reached, "commits")  # type: ignore[misc]
            former = coordinator(cluster, group)
            end(former)
            cluster.wait_for_leader(OFFSETS, partition_for(group, OFFSETS_PARTITIONS), other_than=former)
            wait_until(lambda reached=acknowledged[0] + 50: acknowledged[0] > reached, "commits")  # type: ignore[misc]
            cluster.restart(former)
            cluster.wait_in_sync()
    finally:
        stopping.set()
        committing.join()
    assert problems == []
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        assert admin.group_offsets(group)[partition].offset == acknowledged[0]


def test_a_deposed_coordinator_commits_nothing(cluster: KafkaliteCluster, new_topic: Callable[..., str]) -> None:
    partition = TopicPartition(new_topic(), 0)
    (group,) = same_coordinator(1)
    with committer(cluster, group) as consumer:
        consumer.assign([partition])
        consumer.commit({partition: 7})
        former = coordinator(cluster, group)
        with RawClient(cluster.broker(former).bootstrap, timeout_s=PATIENCE_S) as late:
            cluster.pause(former)
            late.send(commit_request(group, partition, 3), 8)
            cluster.wait_for_leader(OFFSETS, partition_for(group, OFFSETS_PARTITIONS), other_than=former)
            consumer.commit({partition: 9})
            cluster.resume(former)
            (topic,) = late.receive(OffsetCommitRequest.API_KEY, 8).topics
            assert topic.partitions[0].error_code in (7, 14, 15, 16), "acknowledged by a broker that was deposed"
        wait_until(
            lambda: former in cluster.in_sync(OFFSETS, partition_for(group, OFFSETS_PARTITIONS)),
            "the return of the former coordinator",
        )
        with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            assert admin.group_offsets(group)[partition].offset == 9


def committer(cluster: KafkaliteCluster, group: str) -> Consumer:
    # Soon convinced that a broker which says nothing is none.
    patience = {"request_timeout_ms": 3_000, "socket_connection_setup_timeout_ms": 1_000}
    return Consumer(bootstrap_servers=cluster.bootstrap, group_id=group, enable_auto_commit=False, **patience)


def commit_request(group: str, partition: TopicPartition, offset: int) -> OffsetCommitRequest:
    asked = OffsetCommitRequestPartition(partition_index=partition.partition, committed_offset=offset)
    return OffsetCommitRequest(
        group_id=group, topics=[OffsetCommitRequestTopic(name=partition.topic, partitions=[asked])]
    )
