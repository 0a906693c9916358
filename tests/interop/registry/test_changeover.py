"""docs/operations.md, step by step: a broker that was a cluster by itself becomes one of three, and goes back."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from spark_kafkalite import Admin, Consumer, Producer
from spark_kafkalite.registry.znodes import CLUSTER_ID, decode_cluster_id
from spark_kafkalite.registry.zookeeper import open_zookeeper
from spark_kafkalite.testing.child_process import ChildFailed
from spark_kafkalite.testing.cluster import BrokerProcess, RegistryProcess
from tests.interop.support.collect import collected
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


def test_from_one_broker_to_three_and_back(tmp_path: Path) -> None:
    alone = fill(tmp_path)
    home, away = alone.data_dir / "_registry", tmp_path / "registry"
    shutil.move(home, away)
    with RegistryProcess(away) as registry:
        connect = {"zookeeper_connect": registry.connect, "zookeeper_session_timeout_ms": 6000}
        with a_broker(tmp_path, **connect) as first:
            # Alone in its cluster, with all that it had: topics, groups, committed offsets.
            with Admin(bootstrap_servers=first.bootstrap) as admin:
                assert admin.list_topics() == ["t"]
            assert read_in_group(first.bootstrap, 1) == [b"2"]
            store = open_zookeeper(registry.connect)
            cluster_id = decode_cluster_id(store.get(CLUSTER_ID).result(PATIENCE_S)[0])
            assert cluster_id in (first.data_dir / "meta.properties").read_text()
            with a_broker(tmp_path, 2, **connect) as second, a_broker(tmp_path, 3, **connect) as third:
                assert store.children("/brokers/ids").result(PATIENCE_S) == ["1", "2", "3"]
                store.close()
                # Any broker serves any client.
                produce(third.bootstrap, "t", b"3")
                assert read_in_group(second.bootstrap, 1) == [b"3"]
                with Admin(bootstrap_servers=second.bootstrap) as admin:
                    for number in range(3):
                        admin.create_topic(f"new-{number}", 1, replication_factor=1)
                for number in range(3):
                    produce(third.bootstrap, f"new-{number}", b"0")
        # It was served where it is now: nothing is left at home that could be taken for it.
        with pytest.raises(ChildFailed, match=r"the registry .*_registry does not exist, but the log directories hold"):
            alone.start()
    shutil.move(away, home)
    with alone:
        produce(alone.bootstrap, "t", b"4")
        assert read_in_group(alone.bootstrap, 1) == [b"4"]
        with Admin(bootstrap_servers=alone.bootstrap) as admin:
            assert sorted(admin.list_topics()) == ["new-0", "new-1", "new-2", "t"]


def test_a_copy_that_was_left_behind_is_not_believed(tmp_path: Path) -> None:
    alone = fill(tmp_path)
    shutil.copytree(alone.data_dir / "_registry", tmp_path / "registry")
    with RegistryProcess(tmp_path / "registry") as registry:
        with a_broker(tmp_path, zookeeper_connect=registry.connect) as first:
            with Admin(bootstrap_servers=first.bootstrap) as admin:
                admin.create_topic("u", 1, replication_factor=1)
            note = first.data_dir / "registry-zxid-checkpoint"
            seen = int(note.read_text().split()[-1])
            wait_until(lambda: int(note.read_text().split()[-1]) > seen, "the note of a later transaction")
        with pytest.raises(ChildFailed, match=r"the registry .*_registry/registry\.db is older than the logs"):
            alone.start()
        assert (alone.data_dir / "u-0").is_dir()
        with a_broker(tmp_path, zookeeper_connect=registry.connect) as first:
            assert read_in_group(first.bootstrap, 1) == [b"2"]
