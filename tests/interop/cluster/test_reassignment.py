"""Partitions that move to other brokers while producers write, on real brokers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Self

import pytest

from spark_kafkalite import Admin, Consumer, Producer, TopicPartition
from spark_kafkalite.client.admin.admin import NewTopic
from spark_kafkalite.errors import (
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    KafkaError,
    NoReassignmentInProgress,
    ReassignmentInProgress,
    UnknownTopicOrPartition,
)
from spark_kafkalite.processes.kafkalite_cluster import KafkaliteCluster
from tests.interop.cluster.conftest import SESSION
from tests.patience import PATIENCE_S, wait_until

T0 = TopicPartition("t", 0)
# Soon enough for a test to see the files go.
QUICK = {"log.segment.delete.delay.ms": 100, "log.retention.check.interval.ms": 1_000, "log.initial.task.delay.ms": 0}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[KafkaliteCluster]:
    with KafkaliteCluster(tmp_path / "cluster", size=4, overrides={**SESSION, **QUICK}) as cluster:
        yield cluster


@pytest.fixture
def admin(cluster: KafkaliteCluster) -> Iterator[Admin]:
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        yield admin


class Load:
    """Writes to all partitions of a topic with acks=all, for as long as the context lasts."""

    def __init__(self, cluster: KafkaliteCluster, partitions: int) -> None:
        self._bootstrap = cluster.bootstrap
        self._partitions = partitions
        self._is_over = threading.Event()
        self.acknowledged: list[set[bytes]] = [set() for _ in range(partitions)]
        self.errors: list[KafkaError] = []
        self._last_s = [time.monotonic()] * partitions
        self.longest_gap_s = 0.0

    def __enter__(self) -> Self:
        self._threads = [threading.Thread(target=self._write, args=(each,)) for each in range(self._partitions)]
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for each in self._threads:
            each.join()

    def _write(self, partition: int) -> None:
        with Producer(bootstrap_servers=self._bootstrap) as producer:
            number = 0
            while not self._is_over.wait(0.02):
                value = b"%d-%d" % (partition, number)
                number += 1
                try:
                    producer.send("t", value, partition=partition).result(PATIENCE_S)
                except KafkaError as error:
                    self.errors.append(error)
                    continue
                now_s = time.monotonic()
                self.longest_gap_s = max(self.longest_gap_s, now_s - self._last_s[partition])
                self._last_s[partition] = now_s
                self.acknowledged[partition].add(value)

    def check(self) -> None:
        """See that each acknowledged value is there, once."""
        assert self.errors == []
        with Consumer(bootstrap_servers=self._bootstrap, auto_offset_reset="earliest") as consumer:
            for partition, acknowledged in enumerate(self.acknowledged):
                consumer.assign([TopicPartition("t", partition)])
                left, seen = set(acknowledged), set()
                while left:
                    found = [record.value for record in consumer.poll(timeout_ms=int(PATIENCE_S * 1000))]
                    assert found and seen.isdisjoint(found)
                    seen.update(found)
                    left.difference_update(seen)
                assert acknowledged


def create(admin: Admin, *replicas: list[int], min_insync: int = 2) -> None:
    settings = {"min.insync.replicas": str(min_insync)}
    admin.create_topics([NewTopic("t", assignments=dict(enumerate(replicas)), configs=settings)])


def replicas_of(admin: Admin, partition: int = 0) -> tuple[Sequence[int], set[int]]:
    info = next(each for each in admin.describe_topics(["t"])["t"].partitions if each.partition == partition)
    return list(info.replicas), set(info.isr)


def moved(admin: Admin, partition: int, targets: list[int]) -> Callable[[], bool]:
    return lambda: replicas_of(admin, partition) == (targets, set(targets))


def directories(cluster: KafkaliteCluster, broker: int) -> list[str]:
    return sorted(each.name for each in cluster.broker(broker).data_dir.iterdir() if each.name.startswith("t-"))


def test_partitions_move_under_load_and_leave_no_file_behind(cluster: KafkaliteCluster, admin: Admin) -> None:
    create(admin, [1, 2, 3], [2, 3, 1])
    with Load(cluster, 2) as load:
        wait_until(lambda: all(len(each) > 20 for each in load.acknowledged), "some records")
        targets = {T0: [4, 2, 3], TopicPartition("t", 1): [4, 1]}
        assert admin.alter_partition_reassignments(targets) == dict.fromkeys(targets)
        for (_, number), brokers in targets.items():
            wait_until(moved(admin, number, brokers), f"t-{number} to have moved")
        # The controller may hear of the end of what it has moved later than the broker that was asked.
        wait_until(lambda: admin.list_partition_reassignments() == {}, "the controller to know of no move")
        before = [len(each) for each in load.acknowledged]
        wait_until(
            lambda: all(len(each) > count for each, count in zip(load.acknowledged, before, strict=True)),
            "more records",
        )
    load.check()
    assert cluster.leader_of("t", 0) in (2, 3, 4) and cluster.leader_of("t", 1) in (1, 4)
    wait_until(lambda: directories(cluster, 1) == ["t-1"], "broker 1 to delete t-0")
    wait_until(lambda: directories(cluster, 2) == directories(cluster, 3) == ["t-0"], "brokers 2 and 3 to delete t-1")


def test_more_replicas_under_load_refuse_no_record(cluster: KafkaliteCluster, admin: Admin) -> None:
    """min.insync.replicas of 2 counts from the moment when the two new replicas are in sync."""
    create(admin, [1])
    with Load(cluster, 1) as load:
        wait_until(lambda: len(load.acknowledged[0]) > 20, "some records")
        assert admin.alter_partition_reassignments({T0: [1, 2, 3]}) == {T0: None}
        wait_until(moved(admin, 0, [1, 2, 3]), "t-0 to have three replicas")
    load.check()
    assert cluster.leader_of("t") == 1


def test_a_move_away_from_a_dead_broker_and_to_one_that_dies(cluster: KafkaliteCluster, admin: Admin) -> None:
    create(admin, [1, 2, 3])
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for number in range(100):
            producer.send("t", b"%d" % number, partition=0)
        producer.flush()
    cluster.kill(1)
    wait_until(lambda: cluster.in_sync("t") == {2, 3}, "broker 1 to leave the ISR")
    assert admin.alter_partition_reassignments({T0: [2, 3, 4]}) == {T0: None}
    wait_until(moved(admin, 0, [2, 3, 4]), "t-0 to have moved away from the dead broker")
    cluster.restart(1)
    wait_until(lambda: directories(cluster, 1) == [], "broker 1 to delete what it has left")
    # A target that is dead: the move waits, and is cancelled.
    cluster.kill(1)
    wait_until(lambda: 1 not in {each.node_id for each in admin.describe_cluster().brokers}, "broker 1 to be gone")
    outcome = admin.alter_partition_reassignments({T0: [1, 2, 3]})[T0]
    assert isinstance(outcome, InvalidReplicaAssignment) and "names broker 1, which is not live" in str(outcome)
    # It is live for as long as it stands still.
    cluster.broker(1).overrides["zookeeper.session.timeout.ms"] = 30_000
    cluster.restart(1)
    cluster.pause(1)
    try:
        wait_until(lambda: admin.alter_partition_reassignments({T0: [1, 2, 3]}) == {T0: None}, "broker 1 to be known")
        (moving,) = admin.list_partition_reassignments([T0]).values()
        assert (moving.adding, moving.removing, moving.targets) == ((1,), (4,), (1, 2, 3))
        with pytest.raises(ReassignmentInProgress):
            admin.create_partitions({"t": 2})
        assert admin.alter_partition_reassignments({T0: None}) == {T0: None}
    finally:
        cluster.resume(1)
    wait_until(lambda: replicas_of(admin)[0] == [2, 3, 4], "the replicas to be those of before")
    assert isinstance(admin.alter_partition_reassignments({T0: None})[T0], NoReassignmentInProgress)
    wait_until(lambda: directories(cluster, 1) == [], "broker 1 to delete what it had begun to copy")


def test_a_move_goes_on_under_another_controller(cluster: KafkaliteCluster, admin: Admin) -> None:
    controller = cluster.controller()
    assert controller is not None
    others = [number for number in cluster.brokers if number != controller]
    create(admin, others[:2])
    with Load(cluster, 1) as load:
        wait_until(lambda: len(load.acknowledged[0]) > 20, "some records")
        # What a target that stands still keeps from ending.
        cluster.pause(others[2])
        assert admin.alter_partition_reassignments({T0: [others[2], others[0]]}) == {T0: None}
        cluster.kill(controller)
        cluster.resume(others[2])
        wait_until(moved(admin, 0, [others[2], others[0]]), "t-0 to have moved under another controller")
    load.check()
    wait_until(lambda: directories(cluster, others[1]) == [], "the former replica to delete its files")


def test_what_cannot_be_is_refused_by_partition(cluster: KafkaliteCluster, admin: Admin) -> None:
    create(admin, [1, 2, 3], [1, 2, 3])
    t1, none = TopicPartition("t", 1), TopicPartition("nowhere", 0)
    outcomes = admin.alter_partition_reassignments({T0: [], t1: [1, 1], none: [1], TopicPartition("t", 7): None})
    assert isinstance(outcomes[T0], InvalidReplicaAssignment) and isinstance(outcomes[t1], InvalidReplicaAssignment)
    assert isinstance(outcomes[none], UnknownTopicOrPartition)
    assert isinstance(outcomes[TopicPartition("t", 7)], UnknownTopicOrPartition)
    outcomes = admin.alter_partition_reassignments({T0: [1, 2]}, allow_replication_factor_change=False)
    assert isinstance(outcomes[T0], InvalidReplicationFactor)
    # Another order moves no data, and fewer replicas take no copy.
    assert admin.alter_partition_reassignments({T0: [3, 2, 1], t1: [2]}) == {T0: None, t1: None}
    wait_until(lambda: replicas_of(admin)[0] == [3, 2, 1], "t-0 to have the other order")
    wait_until(moved(admin, 1, [2]), "t-1 to have one replica")
