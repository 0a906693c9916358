"""Topics whose nodes vanish: by hand, which costs no log, and by a deletion, which costs all of them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_kafkalite import Admin
from spark_kafkalite.registry import znodes
from spark_kafkalite.registry.store import Create, Delete, NoNode, Store
from spark_kafkalite.registry.zookeeper import open_zookeeper
from spark_kafkalite.testing.kafkalite_cluster import KafkaliteCluster
from spark_kafkalite.testing.zookeeper import ZooKeeperServer
from tests.interop.cluster.conftest import SESSION
from tests.interop.cluster.test_deleted_topics import produce
from tests.interop.cluster.test_replication import values_of
from tests.patience import PATIENCE_S, wait_until

Registry = tuple[KafkaliteCluster, Store]


@pytest.fixture(params=["kafkalite", pytest.param("zookeeper", marks=pytest.mark.zookeeper)])
def vanishing(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Registry]:
    overrides: dict[str, object] = {**SESSION, "log.segment.delete.delay.ms": 0}
    if request.param == "zookeeper":
        server: ZooKeeperServer = request.getfixturevalue("zookeeper")
        overrides["zookeeper.connect"] = f"{server.connect}/{uuid.uuid4().hex}"
    with KafkaliteCluster(tmp_path / "cluster", overrides=overrides) as cluster:
        store = open_zookeeper(str(overrides.get("zookeeper.connect", cluster.registry.connect)))
        try:
            yield cluster, store
        finally:
            store.close()


def directories(cluster: KafkaliteCluster, number: int, topic: str) -> list[str]:
    """How the names of the directories end that a broker has of partition 0."""
    return sorted(path.name.rpartition("-")[2] for path in cluster.broker(number).data_dir.glob(f"{topic}-0*"))


def subtree(store: Store, path: str) -> list[tuple[str, bytes]]:
    """The nodes at and below a path with their data, parents first."""
    found = [(path, store.get(path).result(PATIENCE_S)[0])]
    for name in store.children(path).result(PATIENCE_S):
        found += subtree(store, f"{path}/{name}")
    return found


def wait_until_in_sync(store: Store, topic: str) -> None:
    def is_in_sync() -> bool:
        try:
            data = store.get(znodes.state_path(topic, 0)).result(PATIENCE_S)[0]
        except NoNode:
            return False
        return len(znodes.LeaderAndIsr.decode(topic, 0, data).isr) == 3

    wait_until(is_in_sync, f"all replicas of {topic} to be in sync")


def wait_until_all_have(cluster: KafkaliteCluster, topic: str, ends: list[str]) -> None:
    def all_have() -> bool:
        return all(directories(cluster, number, topic) == ends for number in cluster.brokers)

    wait_until(all_have, f"all brokers to have {ends} of {topic}")


@pytest.mark.parametrize("restarted", [False, True], ids=["running", "restarted"])
def test_a_topic_that_is_removed_by_hand_keeps_its_logs_and_has_all_records_when_it_is_back(
    vanishing: Registry, restarted: bool
) -> None:
    cluster, store = vanishing
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topic("t", 1, replication_factor=3)
        wait_until_in_sync(store, "t")
        produce(cluster, "t", b"value", 100)
        nodes = subtree(store, znodes.topic_path("t"))
        # At once: the controller would make the states again.
        store.multi([Delete(path) for path, _ in reversed(nodes)]).result(PATIENCE_S)
        wait_until_all_have(cluster, "t", ["stray"])
        assert "t" not in admin.list_topics()
    if restarted:
        for number in cluster.brokers:
            cluster.restart(number)
        wait_until_all_have(cluster, "t", ["stray"])
    store.multi([Create(path, data) for path, data in nodes]).result(PATIENCE_S)
    wait_until_all_have(cluster, "t", ["0"])
    wait_until_in_sync(store, "t")
    assert values_of(cluster.bootstrap, "t", 100) == [b"value"] * 100
    produce(cluster, "t", b"later", 1)
    assert values_of(cluster.bootstrap, "t", 101)[100:] == [b"later"]


def test_a_topic_that_is_deleted_loses_its_logs_also_those_of_a_broker_that_was_down(vanishing: Registry) -> None:
    cluster, store = vanishing
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topic("t", 1, replication_factor=3)
        wait_until_in_sync(store, "t")
        produce(cluster, "t", b"value", 10)
        away = max(cluster.brokers)
        cluster.kill(away)
    living = [cluster.broker(number).bootstrap for number in cluster.brokers if number != away]
    with Admin(bootstrap_servers=living) as admin:
        admin.delete_topics(["t"])
    assert directories(cluster, away, "t") == ["0"]
    cluster.restart(away)
    wait_until_all_have(cluster, "t", [])
