"""Formats of ``__consumer_offsets``: what Apache Kafka wrote, older versions written out, and damage."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafkalite.coordinator.groups.records import (
    GroupKey,
    GroupMetadata,
    MemberMetadata,
    OffsetKey,
    OffsetValue,
    RecordKey,
    RecordValue,
    UnreadableRecord,
    decode_key,
    decode_value,
    encode_key,
    encode_records,
    encode_value,
)
from tests.paths import GOLDEN

GOLDEN_FILES = GOLDEN / "groups" / "records.json"

texts = st.text(max_size=40)
keys = st.one_of(
    st.builds(OffsetKey, texts, texts, st.integers(0, 2**31 - 1)),
    st.builds(GroupKey, texts),
)
int64 = st.integers(-(2**63), 2**63 - 1)
int32 = st.integers(-(2**31), 2**31 - 1)
offsets = st.builds(OffsetValue, int64, int32, texts, int64, st.just(-1))
members = st.builds(
    MemberMetadata, texts, st.none() | texts, texts, texts, int32, int32, st.binary(max_size=60), st.binary(max_size=60)
)
groups = st.builds(
    GroupMetadata, texts, int32, st.none() | texts, st.none() | texts, int64, st.lists(members, max_size=3).map(tuple)
)


def golden() -> list[tuple[bytes, bytes | None]]:
    records = json.loads(GOLDEN_FILES.read_text(encoding="utf-8"))
    return [(bytes.fromhex(r["key"]), None if r["value"] is None else bytes.fromhex(r["value"])) for r in records]


def decoded(records: list[tuple[bytes, bytes | None]]) -> list[tuple[RecordKey, RecordValue | None]]:
    return [(key := decode_key(raw_key), decode_value(key, raw_value)) for raw_key, raw_value in records]


def test_what_apache_kafka_wrote_is_read() -> None:
    found = decoded(golden())
    simple = [value for key, value in found if key == OffsetKey("simple caf\u00e9", "golden", 0)]
    assert isinstance(simple[0], OffsetValue)
    # confluent-kafka counts the C string's end as part of the metadata.
    assert simple[0][:3] == (17, 0, "read up to here \u2713\0")
    assert simple[0].commit_timestamp_ms > 1_700_000_000_000
    assert simple[1:] == [None]
    ((_, large),) = [pair for pair in found if pair[0] == OffsetKey("simple caf\u00e9", "golden", 1)][:1]
    assert isinstance(large, OffsetValue)
    assert large[:3] == (2**40, -1, "")
    ((_, old),) = [pair for pair in found if pair[0] == OffsetKey("old", "golden", 0)]
    assert isinstance(old, OffsetValue)
    assert old.expire_timestamp_ms == old.commit_timestamp_ms + 3_600_000
    static = [value for key, value in found if key == GroupKey("static")]
    assert isinstance(static[-1], GroupMetadata)
    assert static[-1][:3] == ("consumer", 1, "cooperative-sticky")
    (member,) = static[-1].members
    assert static[-1].leader == member.member_id
    assert (member.group_instance_id, member.client_id, member.client_host) == (
        "static-1",
        "golden client",
        "/127.0.0.1",
    )
    assert (member.rebalance_timeout_ms, member.session_timeout_ms) == (300_000, 6000)
    assert b"golden" in member.subscription and b"golden" in member.assignment


def test_what_apache_kafka_wrote_is_written_byte_for_byte() -> None:
    written = 0
    for raw_key, raw_value in golden():
        key = decode_key(raw_key)
        assert encode_key(key) == raw_key
        # Offsets of version 4 carry a topic id in a tagged field, which no client can ask for; we write version 3.
        if raw_value is not None and raw_value[:2] != b"\0\4":
            value = decode_value(key, raw_value)
            assert value is not None
            assert encode_value(value) == raw_value
            written += 1
    assert written >= 5


@given(keys)
def test_keys_come_back(key: RecordKey) -> None:
    assert decode_key(encode_key(key)) == key


@given(offsets | groups)
def test_values_come_back(value: RecordValue) -> None:
    key: RecordKey = OffsetKey("g", "t", 0) if isinstance(value, OffsetValue) else GroupKey("g")
    assert decode_value(key, encode_value(value)) == value


@given(st.lists(st.tuples(keys, offsets | st.none()), max_size=5))
def test_records_are_encoded_together_as_one_by_one(entries: list[tuple[RecordKey, OffsetValue | None]]) -> None:
    entries += [(OffsetKey(*key), value) for key, value in entries if isinstance(key, OffsetKey)]
    one_by_one = [(encode_key(key), None if value is None else encode_value(value)) for key, value in entries]
    assert encode_records(entries) == one_by_one


def test_keys_of_one_topic_and_of_another_follow_each_other() -> None:
    group, long_group = "g", "g" * 300
    keys = [OffsetKey(group, "t", 0), OffsetKey(group, "t", 1), OffsetKey(group, "u", 1), OffsetKey(long_group, "u", 1)]
    assert [decode_key(key) for key, _ in encode_records([(key, None) for key in keys])] == keys


def test_a_retention_time_of_the_client_is_kept() -> None:
    value = OffsetValue(5, -1, "m", 1000, 2000)
    assert encode_value(value) == bytes.fromhex("0001 0000000000000005 0001 6d 00000000000003e8 00000000000007d0")
    assert decode_value(OffsetKey("g", "t", 0), encode_value(value)) == value


OLD_OFFSETS = [
    ("0000 0000000000000005 0001 6d 00000000000003e8", OffsetValue(5, -1, "m", 1000)),
    ("0002 0000000000000005 0001 6d 00000000000003e8", OffsetValue(5, -1, "m", 1000)),
    ("0003 0000000000000005 00000007 0001 6d 00000000000003e8", OffsetValue(5, 7, "m", 1000)),
    ("0004 0000000000000005 00000007 02 6d 00000000000003e8 00", OffsetValue(5, 7, "m", 1000)),
    ("0004 0000000000000005 00000007 02 6d 00000000000003e8 01 09 02 aabb", OffsetValue(5, 7, "m", 1000)),
]


@pytest.mark.parametrize(("data", "value"), OLD_OFFSETS)
def test_every_version_of_offsets_is_read(data: str, value: OffsetValue) -> None:
    assert decode_value(OffsetKey("g", "t", 0), bytes.fromhex(data)) == value
    assert decode_key(bytes.fromhex("0000 0001 67 0001 74 00000003")) == OffsetKey("g", "t", 3)


OLD_MEMBER = MemberMetadata("m", None, "c", "h", 9, 9, b"s", b"as")
OLD_GROUPS = [
    (
        "0000 0001 70 00000002 0001 78 0001 6d 00000001 0001 6d 0001 63 0001 68 00000009 00000001 73 00000002 6173",
        GroupMetadata("p", 2, "x", "m", -1, (OLD_MEMBER,)),
    ),
    (
        "0001 0001 70 00000002 ffff ffff 00000001 0001 6d 0001 63 0001 68 00000008 00000009 00000001 73 00000002 6173",
        GroupMetadata("p", 2, None, None, -1, (OLD_MEMBER._replace(rebalance_timeout_ms=8),)),
    ),
    (
        "0002 0001 70 00000002 ffff ffff 00000000000003e8 00000001"
        " 0001 6d 0001 63 0001 68 00000008 00000009 00000001 73 00000002 6173",
        GroupMetadata("p", 2, None, None, 1000, (OLD_MEMBER._replace(rebalance_timeout_ms=8),)),
    ),
    (
        "0004 02 70 00000002 00 02 6d 00000000000003e8 02"
        " 02 6d 02 69 02 63 02 68 00000008 00000009 02 73 03 6173 00 00",
        GroupMetadata("p", 2, None, "m", 1000, (MemberMetadata("m", "i", "c", "h", 8, 9, b"s", b"as"),)),
    ),
]


@pytest.mark.parametrize(("data", "value"), OLD_GROUPS)
def test_every_version_of_groups_is_read(data: str, value: GroupMetadata) -> None:
    assert decode_value(GroupKey("g"), bytes.fromhex(data)) == value


@pytest.mark.parametrize(
    "data", ["", "00", "0003 0001 67", "0010", "ffff", "0001 0005 67", "0001 ffff 0001 74 00000003"]
)
def test_keys_that_cannot_be_read_are_told_apart(data: str) -> None:
    with pytest.raises(UnreadableRecord, match="__consumer_offsets"):
        decode_key(bytes.fromhex(data))


def test_a_record_without_key_is_unreadable() -> None:
    with pytest.raises(UnreadableRecord, match="no key"):
        decode_key(None)


@given(st.sampled_from([OffsetKey("g", "t", 0), GroupKey("g")]), st.binary(max_size=80), st.integers(-1, 6))
def test_damaged_values_are_values_or_unreadable(key: RecordKey, rest: bytes, version: int) -> None:
    try:
        value = decode_value(key, struct.pack(">h", version) + rest)
    except UnreadableRecord:
        return
    assert isinstance(value, OffsetValue | GroupMetadata)


def test_a_count_that_cannot_be_true_takes_no_memory() -> None:
    with pytest.raises(UnreadableRecord, match="2147483647 members"):
        decode_value(GroupKey("g"), bytes.fromhex("0001 0001 70 00000002 ffff ffff 7fffffff"))


def test_strings_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="at most 32767"):
        encode_key(GroupKey("\u00e9" * 16384))
    with pytest.raises(ValueError, match="at most 32767"):
        encode_key(OffsetKey("g", "t" * 32768, 0))
    with pytest.raises(ValueError, match="at most 32767"):
        encode_value(OffsetValue(1, metadata="m" * 32768))
