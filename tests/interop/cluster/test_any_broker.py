"""Topics are created, grown and deleted through every broker, and everything is known to the broker that was asked."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from spark_kafkalite.processes.kafkalite_cluster import KafkaliteCluster
from spark_kafkalite.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from spark_kafkalite.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from spark_kafkalite.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from spark_kafkalite.wire.messages.describe_cluster import DescribeClusterRequest
from spark_kafkalite.wire.messages.find_coordinator import FindCoordinatorRequest
from spark_kafkalite.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.interop.cluster.conftest import SESSION
from tests.interop.support.raw_client import RawClient
from tests.patience import wait_until

ALREADY_EXISTS, INVALID_PARTITIONS = 36, 37


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaliteCluster]:
    overrides = {**SESSION, "default.replication.factor": 1, "min.insync.replicas": 1}
    with KafkaliteCluster(tmp_path_factory.mktemp("any"), overrides=overrides) as running:
        yield running


@pytest.fixture(params=[1, 2, 3])
def broker(request: pytest.FixtureRequest, cluster: KafkaliteCluster) -> Iterator[RawClient]:
    with RawClient(cluster.brokers[request.param].bootstrap) as client:
        yield client


@pytest.fixture
def name() -> str:
    return f"t-{uuid.uuid4().hex[:8]}"


def metadata(client: RawClient, *names: str, create: bool = False, version: int = 12) -> Any:
    topics = [MetadataRequestTopic(name=name) for name in names]
    return client.call(MetadataRequest(topics=topics, allow_auto_topic_creation=create), version)


def create(client: RawClient, name: str, partitions: int = 6, replicas: int = 1, timeout_ms: int = 50_000) -> Any:
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=replicas)
    (created,) = client.call(CreateTopicsRequest(topics=[topic], timeout_ms=timeout_ms), 7).topics
    return created


def test_a_topic_is_served_everywhere_once_its_creation_is_answered(
    cluster: KafkaliteCluster, broker: RawClient, name: str
) -> None:
    created = create(broker, name)
    assert (created.error_code, created.num_partitions, created.replication_factor) == (0, 6, 1)
    # What it is to be is described by the controller.
    assert any(setting.name == "retention.ms" for setting in created.configs)
    (topic,) = metadata(broker, name).topics
    assert topic.topic_id == created.topic_id
    assert {part.error_code for part in topic.partitions} == {0}
    leaders = {part.partition_index: part.leader_id for part in topic.partitions}
    assert set(leaders.values()) == {1, 2, 3}
    for number, leader in leaders.items():
        with RawClient(cluster.brokers[leader].bootstrap) as client:
            (own,) = metadata(client, name).topics
            assert own.error_code == 0
            part = next(part for part in own.partitions if part.partition_index == number)
            assert (part.error_code, part.leader_id) == (0, leader)
    again = create(broker, name)
    assert again.error_code == ALREADY_EXISTS and name in again.error_message


def test_a_topic_grows_through_every_broker(broker: RawClient, name: str) -> None:
    assert create(broker, name, 1).error_code == 0
    grown = CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name=name, count=5, assignments=None)], timeout_ms=50_000
    )
    (result,) = broker.call(grown, 3).results
    assert result.error_code == 0
    (topic,) = metadata(broker, name).topics
    assert sorted(part.partition_index for part in topic.partitions) == [0, 1, 2, 3, 4]
    assert {part.error_code for part in topic.partitions} == {0}
    (refused,) = broker.call(grown, 3).results
    assert refused.error_code == INVALID_PARTITIONS


def test_a_topic_is_gone_where_its_deletion_was_asked_for(broker: RawClient, name: str) -> None:
    first = create(broker, name, 3)
    (result,) = broker.call(DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=50_000), 6).responses
    assert result.error_code == 0
    assert metadata(broker, name).topics[0].error_code == 3
    second = create(broker, name, 3)
    assert second.error_code == 0 and second.topic_id != first.topic_id
    by_id = DeleteTopicsRequest(topics=[DeleteTopicState(name=None, topic_id=second.topic_id)], timeout_ms=50_000)
    (result,) = broker.call(by_id, 6).responses
    assert (result.error_code, result.name) == (0, name)
    assert metadata(broker, name).topics[0].error_code == 3


def test_what_cannot_be_created_says_what_the_controller_says(broker: RawClient, name: str) -> None:
    refused = create(broker, name, replicas=4)
    assert refused.error_code == 38 and "4" in refused.error_message
    assert create(broker, "a/b").error_code == 17
    only_tried = CreateTopicsRequest(
        topics=[CreatableTopic(name=name, num_partitions=1, replication_factor=1)], validate_only=True
    )
    assert broker.call(only_tried, 7).topics[0].error_code == 0
    assert metadata(broker, name).topics[0].error_code == 3


def test_metadata_create_what_they_are_asked_for(broker: RawClient, name: str) -> None:
    def made() -> list[int]:
        # On a slow host the first answer does not wait until it is there.
        (topic,) = metadata(broker, name, create=True).topics
        assert topic.error_code == 0
        return [part.error_code for part in topic.partitions]

    wait_until(lambda: made() == [0], f"{name} to be made")


def test_every_broker_names_the_same_coordinator(cluster: KafkaliteCluster) -> None:
    found = set()
    for one in cluster.brokers.values():
        with RawClient(one.bootstrap) as client:

            def answered(client: RawClient = client) -> Any:
                answer = client.call(FindCoordinatorRequest(coordinator_keys=["g"], key_type=0), 4).coordinators[0]
                return answer if answer.error_code != 15 else None

            answer = wait_until(answered, f"a coordinator at {one.bootstrap}")
            assert answer.error_code == 0, answer.error_message
            found.add((answer.node_id, answer.host, answer.port))
    ((number, host, port),) = found
    assert cluster.brokers[number].bootstrap == f"{host}:{port}"


def test_every_broker_names_the_same_controller_and_all_addresses(cluster: KafkaliteCluster) -> None:
    said = set()
    for one in cluster.brokers.values():
        with RawClient(one.bootstrap) as client:
            answer = client.call(DescribeClusterRequest(), 1)
            said.add((answer.controller_id, tuple((each.broker_id, each.host, each.port) for each in answer.brokers)))
            shown = metadata(client)
            assert shown.controller_id == answer.controller_id
    ((controller, brokers),) = said
    assert controller in {1, 2, 3}
    assert {number: f"{host}:{port}" for number, host, port in brokers} == {
        number: one.bootstrap for number, one in cluster.brokers.items()
    }
