"""docs/operations.md, step by step: a broker that was a cluster by itself becomes one of several."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

import pytest

from spark_kafkalite import Admin, Consumer, Producer
from spark_kafkalite.processes.child_process import ChildFailed
from spark_kafkalite.processes.cluster import BrokerProcess, RegistryProcess
from spark_kafkalite.processes.zookeeper import ZooKeeperServer
from spark_kafkalite.registry.znodes import CLUSTER_ID, decode_cluster_id
from spark_kafkalite.registry.zookeeper import open_zookeeper
from tests.interop.cluster.test_commands import kafkalite
from tests.interop.support.collect import collected
from tests.paths import PROJECT
from tests.patience import PATIENCE_S, wait_until


def a_broker(directory: Path, number: int = 1, **settings: object) -> BrokerProcess:
    overrides = {
        "broker.id": number,
        "offsets.topic.num.partitions": 2,
        "group.initial.rebalance.delay.ms": 0,
        **{name.replace("_", "."): value for name, value in settings.items()},
    }
    return BrokerProcess(directory / f"broker-{number}", overrides=overrides)


def produce(bootstrap: str, topic: str, *values: bytes) -> None:
    with Producer(bootstrap_servers=bootstrap) as producer:
        for value in values:
            producer.send(topic, value, partition=0).result(PATIENCE_S)


def read_in_group(bootstrap: str, count: int) -> list[bytes | None]:
    """Return what the group has not read of topic t, and commit that."""
    with Consumer(bootstrap_servers=bootstrap, group_id="g", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["t"])
        found = collected(lambda: consumer.poll(timeout_ms=200), count)
        consumer.commit()
    return [record.value for record in found]


def fill(tmp_path: Path) -> BrokerProcess:
    """Run a broker alone, with a topic of which a group has read a part; return it stopped."""
    alone = a_broker(tmp_path)
    with alone:
        with Admin(bootstrap_servers=alone.bootstrap) as admin:
            admin.create_topic("t", 2)
        produce(alone.bootstrap, "t", b"0", b"1")
        assert read_in_group(alone.bootstrap, 2) == [b"0", b"1"]
        produce(alone.bootstrap, "t", b"2")
    return alone


def export_command() -> list[str]:
    """The command of docs/operations.md."""
    section = (PROJECT / "docs" / "operations.md").read_text().split("\n## From one broker to three\n")[1]
    return next(line.strip("$ ").split() for line in section.splitlines() if "kafkalite registry export" in line)


@pytest.mark.zookeeper
def test_from_one_broker_to_three(tmp_path: Path, zookeeper: ZooKeeperServer) -> None:
    alone = fill(tmp_path)
    address = f"{zookeeper.connect}/changeover-{uuid.uuid4().hex}"
    on_this_host = {"/var/lib/kafkalite/_registry": str(alone.data_dir / "_registry")}
    _, *arguments, _ = [on_this_host.get(each, each) for each in export_command()]
    shown = kafkalite(*arguments, address)
    assert f"nodes copied to {address}" in shown.stderr and "the old registry is out of use" in shown.stderr
    connect = {"zookeeper_connect": address, "zookeeper_session_timeout_ms": 6000}
    with a_broker(tmp_path, **connect) as first:
        # Alone in its cluster, with all that it had: topics, groups, committed offsets.
        with Admin(bootstrap_servers=first.bootstrap) as admin:
            assert admin.list_topics() == ["t"]
        assert read_in_group(first.bootstrap, 1) == [b"2"]
        store = open_zookeeper(address)
        cluster_id = decode_cluster_id(store.get(CLUSTER_ID).result(PATIENCE_S)[0])
        assert cluster_id in (first.data_dir / "meta.properties").read_text()
        with a_broker(tmp_path, 2, **connect) as second, a_broker(tmp_path, 3, **connect) as third:
            assert store.children("/brokers/ids").result(PATIENCE_S) == ["1", "2", "3"]
            store.close()
            # Any broker serves any client.
            produce(third.bootstrap, "t", b"3")
            assert read_in_group(second.bootstrap, 1) == [b"3"]
            with Admin(bootstrap_servers=second.bootstrap) as admin:
                admin.create_topic("new", 1, replication_factor=3)
            produce(third.bootstrap, "new", b"0")
    # Nothing is left at home that could be taken for the registry.
    with pytest.raises(ChildFailed, match=r"_registry has been exported to a ZooKeeper ensemble: set zoo"):
        alone.start()


def test_brokers_of_one_host_share_a_registry_and_one_goes_back(tmp_path: Path) -> None:
    alone = fill(tmp_path)
    home, away = alone.data_dir / "_registry", tmp_path / "registry"
    shutil.move(home, away)
    with RegistryProcess(away) as registry:
        connect = {"zookeeper_connect": registry.connect, "zookeeper_session_timeout_ms": 6000}
        with a_broker(tmp_path, **connect) as first, a_broker(tmp_path, 2, **connect) as second:
            produce(second.bootstrap, "t", b"3")
            assert read_in_group(first.bootstrap, 2) == [b"2", b"3"]
        # It was served where it is now: nothing is left at home that could be taken for it.
        with pytest.raises(ChildFailed, match=r"the registry .*_registry does not exist, but the log directories hold"):
            alone.start()
    shutil.move(away, home)
    with alone:
        produce(alone.bootstrap, "t", b"4")
        assert read_in_group(alone.bootstrap, 1) == [b"4"]


def test_a_copy_that_was_left_behind_is_not_believed(tmp_path: Path) -> None:
    alone = fill(tmp_path)
    shutil.copytree(alone.data_dir / "_registry", tmp_path / "registry")
    with RegistryProcess(tmp_path / "registry") as registry:
        with a_broker(tmp_path, zookeeper_connect=registry.connect) as first:
            note = first.data_dir / "registry-zxid-checkpoint"
            seen = int(note.read_text().split()[-1])
            with Admin(bootstrap_servers=first.bootstrap) as admin:
                admin.create_topic("u", 1, replication_factor=1)
            wait_until(lambda: int(note.read_text().split()[-1]) > seen, "the note of a later transaction")
        with pytest.raises(ChildFailed, match=r"the registry .*_registry/registry\.db is older than the logs"):
            alone.start()
        assert (alone.data_dir / "u-0").is_dir()
        with a_broker(tmp_path, zookeeper_connect=registry.connect) as first:
            assert read_in_group(first.bootstrap, 1) == [b"2"]
