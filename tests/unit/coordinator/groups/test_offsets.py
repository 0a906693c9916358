"""Committed offsets in memory: what replay makes of records, what is pending, what has expired."""

from __future__ import annotations

from spark_kafkalite.coordinator.groups.group import Group
from spark_kafkalite.coordinator.groups.members import GroupLimits
from spark_kafkalite.coordinator.groups.offsets import GroupOffsets, expired_offsets
from spark_kafkalite.coordinator.groups.records import GroupMetadata, MemberMetadata, OffsetKey, OffsetValue
from spark_kafkalite.model import TopicPartition

HOUR_MS = 3_600_000
NOW_MS = 1_700_000_000_000
T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


def key(topic_partition: TopicPartition, group: str = "g") -> OffsetKey:
    return OffsetKey(group, *topic_partition)


def at(commit_ms: int, expire_ms: int = -1) -> OffsetValue:
    return OffsetValue(5, -1, "", commit_ms, expire_ms)


def test_the_last_record_of_a_key_counts() -> None:
    offsets = GroupOffsets()
    offsets.apply(key(T0), OffsetValue(1))
    offsets.apply(key(T0), OffsetValue(2))
    offsets.apply(key(T1), OffsetValue(3))
    offsets.apply(key(T0, "other"), OffsetValue(9))
    assert offsets.of("g") == {T0: OffsetValue(2), T1: OffsetValue(3)}
    assert len(offsets) == 3
    offsets.apply(key(T0), None)
    offsets.apply(key(U0), None)
    assert offsets.of("g") == {T1: OffsetValue(3)}
    offsets.apply(key(T1), None)
    assert offsets.of("g") == {}
    assert list(offsets.groups()) == ["other"]


def test_what_is_being_written_is_not_shown_but_known_of() -> None:
    pending = [key(T0), key(T1), key(T0, "other")]
    offsets = GroupOffsets(lambda: pending)
    assert offsets.of("g") == {}
    assert offsets.pending("g") == {key(T0), key(T1)} and offsets.has_any("g")
    offsets.apply(key(U0), OffsetValue(1))
    assert offsets.keys("g") == [key(T0), key(T1), key(U0)]
    pending.clear()
    assert offsets.keys("g") == [key(U0)]
    assert not offsets.has_any("other")


def simple_group() -> Group:
    return Group("g", GroupLimits())


def empty_group(since_ms: int) -> Group:
    return Group.from_metadata("g", GroupMetadata("consumer", 3, None, None, since_ms), GroupLimits())


def group_reading(topic: str, protocol_type: str = "consumer") -> Group:
    subscription = b"\0\1\0\0\0\1" + len(topic).to_bytes(2, "big") + topic.encode() + b"\xff\xff\xff\xff"
    member = MemberMetadata("m", None, "c", "h", 60_000, 10_000, subscription, b"")
    return Group.from_metadata("g", GroupMetadata(protocol_type, 3, "range", "m", NOW_MS, (member,)), GroupLimits())


def expired(group: Group, records: dict[TopicPartition, OffsetValue]) -> list[TopicPartition]:
    offsets = GroupOffsets()
    for topic_partition, value in records.items():
        offsets.apply(key(topic_partition), value)
    return expired_offsets(group, offsets, NOW_MS, HOUR_MS)


def test_offsets_without_a_group_expire_after_their_commit() -> None:
    assert expired(simple_group(), {T0: at(NOW_MS - HOUR_MS), T1: at(NOW_MS - HOUR_MS + 1)}) == [T0]


def test_offsets_of_an_empty_group_expire_after_it_became_empty() -> None:
    old = {T0: at(NOW_MS - 50 * HOUR_MS)}
    assert expired(empty_group(NOW_MS - HOUR_MS + 1), old) == []
    assert expired(empty_group(NOW_MS - HOUR_MS), old) == [T0]
    # An administrator has moved it since.
    assert expired(empty_group(NOW_MS - 9 * HOUR_MS), {T0: at(NOW_MS - 5)}) == []
    # Written by a version that did not note the time.
    assert expired(empty_group(-1), old) == [T0]


def test_of_a_group_with_consumers_only_topics_that_nobody_reads_expire() -> None:
    old = {T0: at(NOW_MS - HOUR_MS), U0: at(NOW_MS - HOUR_MS)}
    assert expired(group_reading("t"), old) == [U0]
    assert expired(group_reading("t", "connect"), old) == []


def test_a_retention_time_of_the_client_goes_before_the_brokers() -> None:
    records = {T0: at(NOW_MS - 1000, NOW_MS), T1: at(NOW_MS - 9 * HOUR_MS, NOW_MS + 1)}
    assert expired(simple_group(), records) == [T0]


def test_what_is_being_committed_does_not_expire() -> None:
    pending = [key(T0)]
    offsets = GroupOffsets(lambda: pending)
    offsets.apply(key(T0), at(0))
    assert expired_offsets(simple_group(), offsets, NOW_MS, HOUR_MS) == []
    pending.clear()
    assert expired_offsets(simple_group(), offsets, NOW_MS, HOUR_MS) == [T0]
