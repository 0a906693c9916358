"""Who leads after deaths and power losses, and the elections that an operator asks for, on three real brokers."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_kafkalite import Admin, Consumer, Producer, TopicPartition
from spark_kafkalite.client.admin.admin import NewTopic
from spark_kafkalite.errors import ElectionNotNeeded, PreferredLeaderNotAvailable
from spark_kafkalite.processes.kafkalite_cluster import KafkaliteCluster
from tests.interop.cluster.conftest import SESSION
from tests.patience import PATIENCE_S, wait_until

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[KafkaliteCluster]:
    with KafkaliteCluster(tmp_path / "cluster", overrides=SESSION) as cluster:
        yield cluster


def create(cluster: KafkaliteCluster, *replicas: list[int]) -> None:
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topics([NewTopic("t", assignments=dict(enumerate(replicas)))])


def produce(cluster: KafkaliteCluster, *values: bytes) -> None:
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for value in values:
            producer.send("t", value, partition=0).result(PATIENCE_S)


def values(cluster: KafkaliteCluster, count: int) -> list[bytes | None]:
    with Consumer(bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([T0])
        found: list[bytes | None] = []
        while len(found) < count:
            found += [record.value for record in consumer.poll(timeout_ms=int(PATIENCE_S * 1000))]
        return found


def lose_power_of(cluster: KafkaliteCluster, number: int) -> None:
    """Have a broker that does not run know nothing any more of what its last run has written."""
    (cluster.broker(number).data_dir / "kafkalite-run").unlink()


def test_three_killed_brokers_come_back_with_everything_and_without_anybodys_help(cluster: KafkaliteCluster) -> None:
    create(cluster, [1, 2, 3])
    produce(cluster, b"0", b"1")
    for number in (3, 1, 2):
        cluster.kill(number)
    for number in (1, 2, 3):
        cluster.restart(number)
    cluster.wait_in_sync("t", timeout_s=PATIENCE_S)
    produce(cluster, b"2")
    assert values(cluster, 3) == [b"0", b"1", b"2"]


def test_a_broker_whose_log_was_removed_does_not_lead_with_an_empty_one(cluster: KafkaliteCluster) -> None:
    """It was killed under this kernel, so whatever else it has is proven to be whole."""
    create(cluster, [1, 2, 3])
    produce(cluster, b"0", b"1")
    for number in (1, 2, 3):
        cluster.kill(number)
    shutil.rmtree(cluster.broker(1).data_dir / "t-0")
    for number in (1, 2, 3):
        cluster.restart(number)
    cluster.wait_in_sync("t", timeout_s=PATIENCE_S)
    produce(cluster, b"2")
    assert values(cluster, 3) == [b"0", b"1", b"2"]


def test_a_broker_that_lost_power_follows_those_that_did_not(cluster: KafkaliteCluster) -> None:
    create(cluster, [1, 2, 3])
    produce(cluster, b"0", b"1")
    cluster.kill(1)
    lose_power_of(cluster, 1)
    cluster.restart(1)
    cluster.wait_in_sync("t", timeout_s=PATIENCE_S)
    assert cluster.leader_of("t") in (2, 3)
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        assert admin.elect_leaders([T0]) == {T0: None}
        assert cluster.leader_of("t") == 1
        assert isinstance(admin.elect_leaders([T0])[T0], ElectionNotNeeded)
        assert admin.elect_leaders() == {}
    assert values(cluster, 2) == [b"0", b"1"]


def test_nobody_leads_whose_log_is_not_proven_but_by_an_election_that_is_asked_for(cluster: KafkaliteCluster) -> None:
    create(cluster, [2, 3], [1, 2])
    produce(cluster, b"0")
    cluster.kill(2)
    assert cluster.wait_for_leader("t", other_than=2, timeout_s=PATIENCE_S) == 3
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        assert isinstance(admin.elect_leaders([T0])[T0], PreferredLeaderNotAvailable)
        cluster.kill(3)
        lose_power_of(cluster, 2)
        cluster.restart(2)
        wait_until(lambda: cluster.leader_of("t") is None, "t-0 to lose its leader")
        # Broker 3 is the only one known to have everything, and is away.
        outcome = admin.elect_leaders([T0])[T0]
        assert isinstance(outcome, PreferredLeaderNotAvailable)
        assert isinstance(admin.elect_leaders([T1], unclean=True)[T1], ElectionNotNeeded)
        assert admin.elect_leaders([T0], unclean=True) == {T0: None}
        assert cluster.leader_of("t") == 2


def test_leaders_go_back_to_the_preferred_replicas_by_themselves(tmp_path: Path) -> None:
    balanced = {"leader.imbalance.check.interval.seconds": 1, "leader.imbalance.per.broker.percentage": 0}
    with KafkaliteCluster(tmp_path / "cluster", overrides={**SESSION, **balanced}) as cluster:
        create(cluster, [1, 2, 3], [2, 3, 1])
        produce(cluster, b"0")
        cluster.kill(1)
        assert cluster.wait_for_leader("t", other_than=1, timeout_s=PATIENCE_S) in (2, 3)
        cluster.restart(1)
        wait_until(lambda: cluster.leader_of("t") == 1, "broker 1 to lead t-0 again")
        assert cluster.leader_of("t", 1) == 2
        produce(cluster, b"1")
        assert values(cluster, 2) == [b"0", b"1"]
