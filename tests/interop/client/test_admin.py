"""Our admin client against our broker and Apache Kafka."""

from __future__ import annotations

import pytest

from spark_kafkalite import Admin, Producer
from spark_kafkalite.client.admin.admin import ConfigChange, NewTopic
from spark_kafkalite.errors import (
    ConfigError,
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicationFactor,
    InvalidRequest,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from spark_kafkalite.model import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, MAX_TIMESTAMP, TopicPartition
from tests.patience import wait_until


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


def test_settings_are_altered_one_by_one_or_all(admin: Admin) -> None:
    """Our broker answers when it obeys; Apache Kafka's has to catch up with its controller first."""
    name = "with-altered-settings"
    admin.create_topic(name, 1, 1, {"retention.ms": "777000"}, if_not_exists=True)
    changes = [
        ConfigChange("retention.ms", "delete"),
        ConfigChange("cleanup.policy", "append", "compact"),
        ConfigChange("segment.ms", "set", "60000"),
    ]
    admin.incremental_alter_configs(changes, topic=name, validate_only=True)
    assert own_settings(admin, name) == {"retention.ms": "777000"}
    admin.incremental_alter_configs(changes, topic=name)
    wait_until(
        lambda: own_settings(admin, name) == {"cleanup.policy": "delete,compact", "segment.ms": "60000"},
        "the change to show",
    )
    admin.incremental_alter_configs([ConfigChange("cleanup.policy", "subtract", "delete")], topic=name)
    wait_until(lambda: own_settings(admin, name)["cleanup.policy"] == "compact", "the change to show")
    described = admin.describe_configs(topic=name, include_synonyms=True)["cleanup.policy"]
    assert (described.value, described.source, described.kind) == ("compact", "topic", "list")
    assert [(each.value, each.source) for each in described.synonyms] == [("compact", "topic"), ("delete", "default")]
    admin.alter_configs({"flush.ms": "50000"}, topic=name)
    wait_until(lambda: own_settings(admin, name) == {"flush.ms": "50000"}, "the change to show")


def test_a_brokers_settings_go_before_those_of_all_brokers(admin: Admin) -> None:
    retention = "log.retention.ms"
    admin.incremental_alter_configs([ConfigChange(retention, "set", "888000")], all_brokers=True)
    admin.incremental_alter_configs([ConfigChange(retention, "set", "999000")], broker_id=1)
    wait_until(lambda: retention in admin.describe_configs(all_brokers=True), "the change to show")
    assert admin.describe_configs(all_brokers=True)[retention].value == "888000"

    def sources() -> list[tuple[str | None, str]]:
        synonyms = admin.describe_configs(broker_id=1, include_synonyms=True)[retention].synonyms
        return [(each.value, each.source) for each in synonyms if each.source != "default"]

    wait_until(
        lambda: sources() == [("999000", "dynamic broker"), ("888000", "dynamic default broker")], "the change to show"
    )
    admin.incremental_alter_configs([ConfigChange(retention, "delete")], broker_id=1)
    wait_until(lambda: sources() == [("888000", "dynamic default broker")], "the change to show")
    admin.incremental_alter_configs([ConfigChange(retention, "delete")], all_brokers=True)
    wait_until(lambda: sources() == [], "the change to show")


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ([ConfigChange("retenton.ms", "set", "1")], InvalidConfig),
        ([ConfigChange("retention.ms", "set", "soon")], InvalidConfig),
        ([ConfigChange("retention.ms", "append", "1")], InvalidConfig),
        ([ConfigChange("retention.ms", "set", "1"), ConfigChange("retention.ms", "set", "2")], InvalidRequest),
        ([ConfigChange("min.compaction.lag.ms", "set", "9"), ConfigChange("max.compaction.lag.ms", "set", "8")],
         InvalidConfig),
    ],
)  # fmt: skip
def test_alterations_that_are_refused(admin: Admin, changes: list[ConfigChange], kind: type[Exception]) -> None:
    name = "with-refused-settings"
    admin.create_topic(name, 1, 1, if_not_exists=True)
    with pytest.raises(kind, match=name):
        admin.incremental_alter_configs(changes, topic=name)
    assert own_settings(admin, name) == {}


def test_alterations_of_what_is_not_there_or_read_only_are_refused(admin: Admin) -> None:
    with pytest.raises(UnknownTopicOrPartition):
        admin.incremental_alter_configs([ConfigChange("retention.ms", "set", "1")], topic="no-such-topic")
    with pytest.raises(InvalidRequest, match=r"log\.dirs"):
        admin.incremental_alter_configs([ConfigChange("log.dirs", "set", "/x")], broker_id=1)
    with pytest.raises(ConfigError, match="none of set, delete"):
        admin.incremental_alter_configs([ConfigChange("flush.ms", "put", "1")], topic="t")  # type: ignore[arg-type]


def own_settings(admin: Admin, topic: str) -> dict[str, str | None]:
    entries = admin.describe_configs(topic=topic).values()
    return {entry.name: entry.value for entry in entries if entry.source == "topic"}


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
    with pytest.raises(ConfigError, match="Topic name is invalid: 'no spaces' contains"):
        admin.create_topic("no spaces", 1, 1)
    admin.create_topics([NewTopic("refusals-3", 1, 1)], validate_only=True)
    assert not {"refusals-2", "refusals-3"} & set(admin.list_topics())


def test_of_several_topics_the_good_ones_are_made(admin: Admin) -> None:
    admin.create_topic("several-1", 1, 1, if_not_exists=True)
    with pytest.raises(TopicAlreadyExists, match="several-1"):
        admin.create_topics([NewTopic("several-1", 1, 1), NewTopic("several-2", 1, 1)])
    # A broker of Apache Kafka hears of it a moment later; of what failed in part the client awaits nothing.
    wait_until(lambda: "several-2" in admin.list_topics(), "the new topics to be listed")
    admin.delete_topics(["several-2"])


def test_offsets_by_time_and_at_the_ends(admin: Admin, bootstrap: str, topic: str) -> None:
    partition = TopicPartition(topic, 0)
    with Producer(bootstrap_servers=bootstrap) as producer:
        for timestamp in (1_000_000_000_000, 1_000_000_005_000, 1_000_000_003_000):
            producer.send(topic, b"x", partition=0, timestamp_ms=timestamp)
    looked_up = {
        which: admin.list_offsets({partition: which})[partition]
        for which in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, MAX_TIMESTAMP)
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
