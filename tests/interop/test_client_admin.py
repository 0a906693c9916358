"""Our admin client against our broker and Apache Kafka."""

from __future__ import annotations

import pytest

from spark_kafkalite import Admin, Producer
from spark_kafkalite.client.admin import EARLIEST, LATEST, MAX_TIMESTAMP, NewTopic
from spark_kafkalite.errors import (
    ConfigError,
    InvalidPartitions,
    InvalidReplicationFactor,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from spark_kafkalite.model import TopicPartition


def test_a_topics_life(admin: Admin) -> None:
    name = "a-topics-life"
    admin.create_topics([NewTopic(name, 2, 1, {"retention.ms": "12345"}), f"{name}-2"])
    assert {name, f"{name}-2"} <= set(admin.list_topics())
    info = admin.describe_topics([name])[name]
    assert [(each.partition, each.leader) for each in info.partitions] == [(0, 1), (1, 1)]
    assert info.topic_id != bytes(16) and not info.is_internal
    admin.create_partitions({name: 5})
    assert len(admin.describe_topics([name])[name].partitions) == 5
    admin.delete_topics([name, f"{name}-2"])
    assert name not in admin.list_topics()
    with pytest.raises(UnknownTopicOrPartition, match=name):
        admin.describe_topics([name])


def test_settings_say_where_they_come_from(admin: Admin) -> None:
    admin.create_topic("with-settings", 1, 1, {"retention.ms": "777000"}, if_not_exists=True)
    entries = admin.describe_configs(topic="with-settings")
    assert (entries["retention.ms"].value, entries["retention.ms"].source) == ("777000", "topic")
    assert entries["max.message.bytes"].value == "1048588" and entries["max.message.bytes"].is_default
    broker = admin.describe_configs(broker_id=1)
    assert "log.dirs" in broker
    with pytest.raises(UnknownTopicOrPartition):
        admin.describe_configs(topic="no-such-topic")
    with pytest.raises(ConfigError, match="either topic or broker_id"):
        admin.describe_configs()


def test_refusals_name_the_topic(admin: Admin) -> None:
    admin.create_topic("refusals", 2, 1, if_not_exists=True)
    with pytest.raises(TopicAlreadyExists, match="refusals"):
        admin.create_topic("refusals", 2, 1)
    admin.create_topic("refusals", 2, 1, if_not_exists=True)
    with pytest.raises(InvalidPartitions):
        admin.create_topic("refusals-2", 0, 1)
    with pytest.raises(InvalidReplicationFactor):
        admin.create_topic("refusals-2", 1, 3)
    with pytest.raises(InvalidPartitions):
        admin.create_partitions({"refusals": 1})
    with pytest.raises(UnknownTopicOrPartition, match="no-such-topic"):
        admin.delete_topics(["no-such-topic"])
    with pytest.raises(ConfigError, match="holds a character"):
        admin.create_topic("no spaces", 1, 1)
    admin.create_topics([NewTopic("refusals-3", 1, 1)], validate_only=True)
    assert not {"refusals-2", "refusals-3"} & set(admin.list_topics())


def test_of_several_topics_the_good_ones_are_made(admin: Admin) -> None:
    admin.create_topic("several-1", 1, 1, if_not_exists=True)
    with pytest.raises(TopicAlreadyExists, match="several-1"):
        admin.create_topics([NewTopic("several-1", 1, 1), NewTopic("several-2", 1, 1)])
    assert "several-2" in admin.list_topics()
    admin.delete_topics(["several-2"])


def test_offsets_by_time_and_at_the_ends(admin: Admin, bootstrap: str, topic: str) -> None:
    partition = TopicPartition(topic, 0)
    with Producer(bootstrap_servers=bootstrap) as producer:
        for timestamp in (1_000_000_000_000, 1_000_000_005_000, 1_000_000_003_000):
            producer.send(topic, b"x", partition=0, timestamp_ms=timestamp)
    looked_up = {
        which: admin.list_offsets({partition: which})[partition] for which in (EARLIEST, LATEST, MAX_TIMESTAMP)
    }
    assert [answer and answer.offset for answer in looked_up.values()] == [0, 3, 1]
    newest = looked_up[MAX_TIMESTAMP]
    assert newest is not None and newest.timestamp == 1_000_000_005_000
    later = admin.list_offsets({partition: 1_000_000_002_000})[partition]
    assert later is not None and (later.offset, later.timestamp) == (1, 1_000_000_005_000)
    assert admin.list_offsets({partition: 1_000_000_009_000})[partition] is None


def test_the_cluster_describes_itself(admin: Admin, bootstrap: str) -> None:
    description = admin.describe_cluster()
    assert description.controller_id == 1 and description.cluster_id is not None
    assert [node.address for node in description.brokers] == [bootstrap]
    assert bootstrap in repr(admin)
