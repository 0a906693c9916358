"""A group's coordinator and committed offsets: what our client stores, it and Kafka's own tools find."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from spark_kafkalite import Admin
from spark_kafkalite.client.config import admin_config
from spark_kafkalite.client.group.coordinator_link import CoordinatorLink
from spark_kafkalite.client.group.offsets import GroupMember, commit_offsets, fetch_offsets
from spark_kafkalite.client.network.cluster import ClusterClient
from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.errors import (
    BrokerUnreachable,
    ConfigError,
    IllegalGeneration,
    KafkaError,
    UnknownMemberId,
    UnknownTopicOrPartition,
)
from spark_kafkalite.model import CommittedOffset, TopicPartition
from tests.lab.apache_kafka import ApacheKafka
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.kafka
_numbers = itertools.count()


@pytest.fixture(scope="module")
def bootstrap(apache_kafka: ApacheKafka) -> str:
    return apache_kafka.bootstrap


@pytest.fixture(scope="module")
def topic(bootstrap: str) -> str:
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topic("group-offsets", 4, 1)
    return "group-offsets"


@pytest.fixture
def cluster(bootstrap: str) -> Iterator[ClusterClient]:
    client = ClusterClient(admin_config({"bootstrap.servers": bootstrap}, {}))
    yield client
    client.close()


@pytest.fixture
def coordinator(cluster: ClusterClient) -> CoordinatorLink:
    return CoordinatorLink(cluster, f"group-offsets-{next(_numbers)}")


def soon() -> Deadline:
    return Deadline.after_ms(1000 * PATIENCE_S)


def test_committed_offsets_come_back_with_their_texts_and_epochs(coordinator: CoordinatorLink, topic: str) -> None:
    offsets = {
        TopicPartition(topic, 0): CommittedOffset(17, "half of the file read", 0),
        TopicPartition(topic, 3): CommittedOffset(2**40),
    }
    commit_offsets(coordinator, offsets, deadline=soon())
    assert fetch_offsets(coordinator, None, soon()) == offsets
    asked = [TopicPartition(topic, number) for number in range(3)]
    assert fetch_offsets(coordinator, asked, soon()) == {asked[0]: offsets[asked[0]]}
    assert fetch_offsets(coordinator, [], soon()) == {}
    commit_offsets(coordinator, {asked[0]: CommittedOffset(5)}, deadline=soon())
    assert fetch_offsets(coordinator, asked, soon()) == {asked[0]: CommittedOffset(5)}


def test_a_group_that_never_committed_has_nothing(coordinator: CoordinatorLink, topic: str) -> None:
    assert fetch_offsets(coordinator, None, soon()) == {}
    assert fetch_offsets(coordinator, [TopicPartition(topic, 0)], soon()) == {}
    commit_offsets(coordinator, {}, deadline=soon())
    assert fetch_offsets(coordinator, None, soon()) == {}


def test_who_is_no_member_of_the_generation_may_not_commit_as_one(coordinator: CoordinatorLink, topic: str) -> None:
    offsets = {TopicPartition(topic, 0): CommittedOffset(1)}
    commit_offsets(coordinator, offsets, deadline=soon())
    with pytest.raises((UnknownMemberId, IllegalGeneration)) as caught:
        commit_offsets(coordinator, offsets, GroupMember("somebody", 3), deadline=soon())
    assert f"group '{coordinator.group_id}'" in str(caught.value)
    assert "member 'somebody' of generation 3" in str(caught.value)
    assert "max.poll.interval.ms" in str(caught.value)


def test_refused_partitions_are_named_and_the_others_stored(coordinator: CoordinatorLink, topic: str) -> None:
    good = TopicPartition(topic, 1)
    with pytest.raises(UnknownTopicOrPartition, match=r"no-such-topic-7 is refused: there is no such topic"):
        commit_offsets(
            coordinator,
            {TopicPartition("no-such-topic", 7): CommittedOffset(1), good: CommittedOffset(9)},
            deadline=soon(),
        )
    assert fetch_offsets(coordinator, None, soon()) == {good: CommittedOffset(9)}
    with pytest.raises(KafkaError, match="OFFSET_METADATA_TOO_LARGE"):
        commit_offsets(coordinator, {good: CommittedOffset(10, "x" * 5_000)}, deadline=soon())
    with pytest.raises(ConfigError, match="offset -1 cannot be committed"):
        commit_offsets(coordinator, {good: CommittedOffset(-1)}, deadline=soon())
    with pytest.raises(ConfigError, match="fit into 64 bits"):
        commit_offsets(coordinator, {good: CommittedOffset(2**63)}, deadline=soon())


def test_the_coordinator_is_asked_for_once_and_again_when_it_is_forgotten(coordinator: CoordinatorLink) -> None:
    assert str(coordinator) == "coordinator not known"
    node = coordinator.node(soon())
    assert str(coordinator) == f"coordinator {node}"
    assert coordinator.node(Deadline.after_ms(0)) == node
    coordinator.forget()
    with pytest.raises(BrokerUnreachable):
        coordinator.node(Deadline.after_ms(0))
    assert coordinator.node(soon()) == node
    found, connection = coordinator.connect(soon())
    assert (found, connection.closed) == (node, False)
    connection.close()
