"""The fixture ``kafkalite_cluster``: what it starts, what a test can do with it, and what it says when it waits."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_kafkalite import Admin
from spark_kafkalite.processes.child_process import ChildFailed
from spark_kafkalite.processes.kafkalite_cluster import KafkaliteCluster


def known_brokers(bootstrap: str) -> dict[int, str]:
    with Admin(bootstrap_servers=bootstrap) as admin:
        return {node.node_id: node.address for node in admin.describe_cluster().brokers}


def broker_settings(cluster: KafkaliteCluster, number: int) -> dict[str, str | None]:
    with Admin(bootstrap_servers=cluster.broker(number).bootstrap) as admin:
        return {name: entry.value for name, entry in admin.describe_configs(broker_id=number).items()}


def test_three_brokers_are_ready_and_know_each_other(kafkalite_cluster: KafkaliteCluster) -> None:
    cluster = kafkalite_cluster
    assert cluster.start_seconds > 0
    addresses = {number: broker.bootstrap for number, broker in cluster.brokers.items()}
    assert list(addresses) == [1, 2, 3]
    assert cluster.bootstrap == ",".join(addresses.values())
    for broker in cluster.brokers.values():
        assert known_brokers(broker.bootstrap) == addresses
    assert cluster.controller() in addresses
    settings = broker_settings(cluster, 2)
    assert settings["default.replication.factor"] == settings["offsets.topic.replication.factor"] == "3"
    assert settings["min.insync.replicas"] == "2"
    assert settings["offsets.topic.num.partitions"] == "10"


class TestSettings:
    @pytest.fixture
    def kafkalite_cluster_settings(self) -> dict[str, object]:
        return {"num.partitions": 4, "group.initial.rebalance.delay.ms": 0}

    @pytest.fixture
    def kafkalite_cluster_size(self) -> int:
        return 2

    def test_size_and_settings_are_the_users(self, kafkalite_cluster: KafkaliteCluster) -> None:
        assert list(kafkalite_cluster.brokers) == [1, 2]
        settings = broker_settings(kafkalite_cluster, 2)
        assert settings["num.partitions"] == "4"
        assert settings["default.replication.factor"] == settings["min.insync.replicas"] == "2"


def test_brokers_die_and_come_back_under_their_addresses(tmp_path: Path) -> None:
    overrides_of = {2: {"broker.rack": "b"}}
    with KafkaliteCluster(tmp_path / "cluster", overrides_of=overrides_of) as cluster:
        pid, address = cluster.broker(2).pid, cluster.broker(2).bootstrap
        cluster.kill(2)
        assert not cluster.broker(2).running
        cluster.restart(2)
        assert (cluster.broker(2).pid != pid, cluster.broker(2).bootstrap) == (True, address)
        assert broker_settings(cluster, 2)["broker.rack"] == "b"
        assert cluster.stop(3) == 0
        assert cluster.add_broker({"broker.rack": "d"}) == 4
        assert broker_settings(cluster, 4)["broker.rack"] == "d"
        cluster.stop_all()
        cluster.start()
        assert {*known_brokers(cluster.bootstrap)} == {1, 2, 3, 4}
        assert cluster.broker(2).bootstrap == address


def test_what_is_not_there_is_said(kafkalite_cluster: KafkaliteCluster) -> None:
    cluster = kafkalite_cluster
    with pytest.raises(ChildFailed, match=r"there is no broker 9; the cluster has 1, 2, 3"):
        cluster.kill(9)
    with pytest.raises(ChildFailed, match=r"the registry has no partition nowhere-0"):
        cluster.leader_of("nowhere")
    with pytest.raises(ChildFailed, match=r"after 0.1 s: there is no topic nowhere(.|\n)*end of .*broker-3"):
        cluster.wait_in_sync("nowhere", timeout_s=0.1)


def test_a_cluster_whose_brokers_cannot_start_leaves_nothing_behind(tmp_path: Path) -> None:
    cluster = KafkaliteCluster(tmp_path / "cluster", overrides_of={2: {"num.partitions": "many"}})
    with pytest.raises(ChildFailed, match=r"broker-2-1 ended (.|\n)*num.partitions='many'"):
        cluster.__enter__()
    assert not cluster.registry.running
    assert not any(broker.running for broker in cluster.brokers.values())
