"""Any broker serves any client: what only the controller does is done whichever broker is asked."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_kafkalite import Admin, Consumer, Producer
from spark_kafkalite.processes.kafkalite_cluster import KafkaliteCluster
from spark_kafkalite.wire.message import ApiMessage
from spark_kafkalite.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from spark_kafkalite.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from spark_kafkalite.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from spark_kafkalite.wire.messages.find_coordinator import FindCoordinatorRequest
from spark_kafkalite.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.interop.cluster.conftest import SESSION
from tests.interop.support.raw_client import RawClient
from tests.patience import PATIENCE_S, wait_until

_numbers = itertools.count(1)


@pytest.fixture(params=[1, 2, 3])
def broker(request: pytest.FixtureRequest, cluster: KafkaliteCluster) -> Iterator[str]:
    """The address of each broker in turn; one of them is the controller."""
    yield cluster.broker(request.param).bootstrap


def ask(broker: str, message: ApiMessage, version: int) -> object:
    with RawClient(broker, timeout_s=PATIENCE_S) as client:
        return client.call(message, version)


def test_the_life_of_a_topic_at_each_broker(broker: str, cluster: KafkaliteCluster, admin: Admin) -> None:
    name = f"asked-for-{next(_numbers)}"
    topic = CreatableTopic(name=name, num_partitions=2, replication_factor=-1)
    created = ask(broker, CreateTopicsRequest(topics=[topic], timeout_ms=50_000), 7).topics[0]  # type: ignore[attr-defined]
    assert (created.error_code, created.replication_factor) == (0, 3), created.error_message
    cluster.wait_in_sync(name)
    again = ask(broker, CreateTopicsRequest(topics=[topic], timeout_ms=50_000), 7).topics[0]  # type: ignore[attr-defined]
    assert again.error_code == 36
    more = CreatePartitionsTopic(name=name, count=5, assignments=None)
    grown = ask(broker, CreatePartitionsRequest(topics=[more], timeout_ms=50_000), 3).results[0]  # type: ignore[attr-defined]
    assert grown.error_code == 0, grown.error_message
    cluster.wait_in_sync(name)
    change = AlterableConfig(name="retention.ms", config_operation=0, value="1234567")
    resource = AlterConfigsResource(resource_type=2, resource_name=name, configs=[change])
    altered = ask(broker, IncrementalAlterConfigsRequest(resources=[resource]), 1).responses[0]  # type: ignore[attr-defined]
    assert altered.error_code == 0, altered.error_message
    for each in cluster.brokers.values():
        with Admin(bootstrap_servers=each.bootstrap) as asked:
            wait_until(
                lambda asked=asked: asked.describe_configs(topic=name)["retention.ms"].value == "1234567",  # type: ignore[misc]
                f"the new setting at {each.bootstrap}",
            )
            assert len(asked.describe_topics([name])[name].partitions) == 5
    gone = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=50_000)
    deleted = ask(broker, gone, 6).responses[0]  # type: ignore[attr-defined]
    assert deleted.error_code == 0, deleted.error_message
    wait_until(lambda: name not in admin.list_topics(), f"{name} to be gone")


def test_a_topic_is_created_for_whoever_asks_for_it_first(broker: str, cluster: KafkaliteCluster) -> None:
    name = f"automatic-{next(_numbers)}"
    with Producer(bootstrap_servers=broker) as producer:
        assert producer.send(name, b"first").result(PATIENCE_S).offset == 0
    cluster.wait_in_sync(name)
    assert cluster.in_sync(name) == {1, 2, 3}


def test_coordinators_are_found_at_each_broker(broker: str, cluster: KafkaliteCluster) -> None:
    def found() -> object:
        answer = ask(broker, FindCoordinatorRequest(key_type=0, coordinator_keys=["any-group"]), 4)
        return answer.coordinators[0]  # type: ignore[attr-defined]

    wait_until(lambda: found().error_code == 0, "a coordinator")  # type: ignore[attr-defined]
    assert found().node_id in cluster.brokers  # type: ignore[attr-defined]
    assert len(cluster.in_sync("__consumer_offsets", 0)) == 3


def test_groups_wait_until_there_are_brokers_for_their_offsets(tmp_path: Path) -> None:
    settings = {**SESSION, "offsets.topic.replication.factor": 3, "group.initial.rebalance.delay.ms": 0}
    with KafkaliteCluster(tmp_path / "cluster", size=1, overrides=settings) as cluster:
        first = cluster.broker(1)
        with Producer(bootstrap_servers=first.bootstrap) as producer:
            producer.send("events", b"one").result(PATIENCE_S)
        for _ in range(20):
            answer = ask(first.bootstrap, FindCoordinatorRequest(key_type=0, coordinator_keys=["group"]), 4)
            assert answer.coordinators[0].error_code == 15  # type: ignore[attr-defined]
        said = [line for line in first.stderr_path.read_text().splitlines() if "__consumer_offsets" in line]
        assert len(said) == 1
        assert "start more brokers, or set offsets.topic.replication.factor" in said[0]
        cluster.add_broker()
        cluster.add_broker()
        with Consumer(bootstrap_servers=cluster.bootstrap, group_id="group", auto_offset_reset="earliest") as consumer:
            consumer.subscribe(["events"])
            records = wait_until(lambda: consumer.poll(500), "the group to be served")
            assert [record.value for record in records] == [b"one"]
            consumer.commit()


def test_a_start_warns_of_what_lets_records_be_lost(tmp_path: Path) -> None:
    with KafkaliteCluster(tmp_path / "cluster", overrides_of={3: {"min.insync.replicas": 1}}) as cluster:
        cluster.stop(3)
        cluster.restart(3)
        (warning,) = [line for line in cluster.broker(3).stderr_path.read_text().splitlines() if "may be lost" in line]
        assert "min.insync.replicas=1 is less than 2" in warning


def test_defaults_come_with_the_third_broker(tmp_path: Path) -> None:
    # What the cluster for tests sets is not set.
    names = ("default.replication.factor", "min.insync.replicas", "offsets.topic.replication.factor")
    with (
        KafkaliteCluster(tmp_path / "cluster", overrides={**SESSION, **dict.fromkeys(names)}) as cluster,
        Admin(bootstrap_servers=cluster.bootstrap) as admin,
    ):

        def in_force() -> list[tuple[str | None, str]]:
            settings = admin.describe_configs(broker_id=2)
            return [(settings[name].value, settings[name].source) for name in names]

        assert in_force() == [("3", "default"), ("2", "default"), ("3", "default")]
        cluster.kill(3)
        wait_until(lambda: len(admin.describe_cluster().brokers) == 2, "the dead broker to be gone")
        assert in_force() == [("3", "default"), ("2", "default"), ("3", "default")]
