"""Our administrator's view of groups, at our broker and Apache Kafka: what it finds, moves and deletes; refusals."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer as OtherConsumer
from confluent_kafka import Producer as OtherProducer

from spark_kafkalite import Admin, Consumer, Producer
from spark_kafkalite.client.admin.admin import GroupListing
from spark_kafkalite.errors import (
    ConfigError,
    GroupIdNotFound,
    GroupSubscribedToTopic,
    NonEmptyGroup,
    UnknownMemberId,
    UnknownTopicOrPartition,
)
from spark_kafkalite.model import CommittedOffset, TopicPartition
from tests.interop.support.assigned_member import assigned_member
from tests.lab.apache_kafka import ApacheKafka
from tests.patience import wait_until

_numbers = itertools.count()


@pytest.fixture
def group() -> str:
    return f"administered-{next(_numbers)}"


@pytest.fixture
def topic(admin: Admin, group: str) -> str:
    admin.create_topic(f"read-by-{group}", 3, 1)
    return f"read-by-{group}"


@pytest.fixture
def member(bootstrap: str, group: str, topic: str) -> Iterator[OtherConsumer]:
    """A member that has been assigned its partitions."""
    with assigned_member(bootstrap, group, topic, client_id="a-reader", group_instance_id="reader-1") as consumer:
        yield consumer


def test_offsets_are_committed_found_moved_and_deleted(admin: Admin, group: str, topic: str) -> None:
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    assert admin.group_offsets(group) == {}
    admin.alter_group_offsets(group, {second: CommittedOffset(7, "by hand"), first: 3})
    assert admin.group_offsets(group) == {first: CommittedOffset(3), second: CommittedOffset(7, "by hand")}
    assert list(admin.group_offsets(group)) == [first, second]
    admin.alter_group_offsets(group, {second: 1})
    assert admin.group_offsets(group, [second]) == {second: CommittedOffset(1)}
    admin.delete_group_offsets(group, [first])
    assert admin.group_offsets(group) == {second: CommittedOffset(1)}
    described = admin.describe_groups([group])[group]
    assert (described.state, described.members, described.exists) == ("Empty", (), True)
    admin.delete_groups([group])
    assert admin.group_offsets(group) == {}
    assert not admin.describe_groups([group])[group].exists


def test_a_group_with_a_member(admin: Admin, group: str, topic: str, member: OtherConsumer) -> None:
    described = admin.describe_groups([group])[group]
    assert (described.state, described.protocol_type, described.protocol) == ("Stable", "consumer", "range")
    assert described.coordinator.node_id == 1
    (only,) = described.members
    assert (only.client_id, only.group_instance_id) == ("a-reader", "reader-1")
    assert only.host.lstrip("/") == "127.0.0.1"
    assert only.assignment == tuple(TopicPartition(topic, number) for number in range(3))
    listed = {each.group_id: each for each in admin.list_groups()}
    assert listed[group] == GroupListing(group, "consumer", "Stable", "classic")
    assert group in {each.group_id for each in admin.list_groups(["Stable", "Dead"])}
    assert group not in {each.group_id for each in admin.list_groups(["Empty"])}
    with pytest.raises(ConfigError, match="state 'Stabel': groups have no such state; the states are Preparing"):
        admin.list_groups(["Stabel"])
    with pytest.raises(UnknownMemberId, match=f"group '{group}'.*Stop the group's consumers first"):
        admin.alter_group_offsets(group, {TopicPartition(topic, 0): 3})
    with pytest.raises(NonEmptyGroup, match=f"group '{group}' cannot be deleted: it has members; stop its consumers"):
        admin.delete_groups([group])
    with pytest.raises(GroupSubscribedToTopic, match=f"for {topic}-0: members of the group read the topic"):
        admin.delete_group_offsets(group, [TopicPartition(topic, 0)])


def test_commits_carry_the_leader_epoch_of_what_was_read(admin: Admin, bootstrap: str, group: str, topic: str) -> None:
    first = TopicPartition(topic, 0)
    with Producer(bootstrap_servers=bootstrap) as producer:
        for number in range(4):
            producer.send(topic, b"%d" % number, partition=0)

    def consumer() -> Consumer:
        return Consumer(
            bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False, auto_offset_reset="earliest"
        )

    with consumer() as reader:
        reader.assign([first])
        assert len(reader.poll(30_000, max_records=2)) == 2
        reader.commit()
        assert admin.group_offsets(group) == {first: CommittedOffset(2, leader_epoch=0)}
    with consumer() as reader:
        reader.assign([first])
        assert reader.position(first, 30_000) == 2
        reader.commit()
        assert admin.group_offsets(group) == {first: CommittedOffset(2, leader_epoch=0)}
        reader.seek(first, 3)
        reader.commit()
        # What lies before it has not been seen.
        assert admin.group_offsets(group) == {first: CommittedOffset(3)}


def test_what_is_not_there(admin: Admin, group: str, topic: str) -> None:
    with pytest.raises(GroupIdNotFound, match=f"group '{group}' cannot be deleted: there is no group '{group}'"):
        admin.delete_groups([group])
    with pytest.raises(GroupIdNotFound, match="offsets of group"):
        admin.delete_group_offsets(group, [TopicPartition(topic, 0)])
    with pytest.raises(UnknownTopicOrPartition, match=r"no-such-topic-0 is refused"):
        admin.alter_group_offsets(group, {TopicPartition("no-such-topic", 0): 1})
    assert admin.group_offsets(group, []) == {}
    with pytest.raises(GroupIdNotFound) as raised:
        admin.delete_groups([f"{group}-a", f"{group}-b"])
    assert f"{group}-a" in str(raised.value) and f"{group}-b" in str(raised.value)


def test_lag_in_records_and_time(admin: Admin, bootstrap: str, group: str, topic: str) -> None:
    now_ms = time.time_ns() // 1_000_000
    with Producer(bootstrap_servers=bootstrap, compression_type="zstd") as producer:
        for number in range(100):
            # One batch; the newest record is a hundred seconds old, each before it ten seconds older.
            producer.send(topic, b"x", partition=0, timestamp_ms=now_ms - 100_000 - 10_000 * (99 - number))
        producer.send(topic, b"x", partition=1, timestamp_ms=now_ms + 3_600_000)
    first, second, third = (TopicPartition(topic, number) for number in range(3))
    admin.delete_records({first: 10})
    admin.alter_group_offsets(group, {first: 40, second: 0})
    lags = admin.group_lag(group, [first, second, third, TopicPartition(topic, 9)])
    assert (lags[first].records, lags[first].deleted) == (60, 0)
    assert lags[first].age_ms is not None and 0 <= lags[first].age_ms - 690_000 < 60_000
    assert (lags[second].records, lags[second].age_ms) == (1, 0)
    assert (lags[third].records, lags[third].age_ms, lags[third].log_end_offset) == (None, None, 0)
    assert lags[TopicPartition(topic, 9)].log_end_offset is None
    behind = admin.lag_behind({first: 0, second: 1, third: 5})
    assert (behind[first].records, behind[first].deleted) == (100, 10)
    assert behind[first].age_ms is not None and 0 <= behind[first].age_ms - 990_000 < 60_000
    assert (behind[second].records, behind[second].age_ms) == (0, 0)
    assert (behind[third].records, behind[third].age_ms) == (-5, 0)
    assert admin.group_lag(group, []) == {}
    with pytest.raises(GroupIdNotFound, match=f"there is no group '{group}-none'"):
        admin.group_lag(f"{group}-none")


@pytest.mark.kafka
def test_the_age_is_that_of_the_next_record_not_of_a_marker(apache_kafka: ApacheKafka, group: str) -> None:
    bootstrap = apache_kafka.bootstrap
    now_ms = time.time_ns() // 1_000_000
    with Admin(bootstrap_servers=bootstrap) as admin:
        marked = TopicPartition(f"marked-{group}", 0)
        admin.create_topic(marked.topic, 1, 1)
        producer = OtherProducer({"bootstrap.servers": bootstrap, "transactional.id": group})
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce(marked.topic, b"in a transaction", partition=0)
        producer.commit_transaction()
        # Record, marker: what comes after the record is no record. Markers are written after the commit was answered.
        wait_until(lambda: admin.lag_behind({marked: 1})[marked].log_end_offset == 2, "the marker to be written")
        lag = admin.lag_behind({marked: 1})[marked]
        assert (lag.records, lag.age_ms) == (1, None)
        with Producer(bootstrap_servers=bootstrap) as ours:
            ours.send(marked.topic, b"x", partition=0, timestamp_ms=now_ms - 500_000)
        lag = admin.lag_behind({marked: 1})[marked]
        assert lag.records == 2 and lag.age_ms is not None and 0 <= lag.age_ms - 500_000 < 60_000
