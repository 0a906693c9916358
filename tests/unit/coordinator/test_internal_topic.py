"""Which partition a key belongs to, and what the topic is made with."""

from __future__ import annotations

import pytest

from spark_kafkalite.broker.settings.broker_settings import BROKER_SETTINGS
from spark_kafkalite.broker.settings.group_settings import offsets_topic
from spark_kafkalite.coordinator.internal_topic import partition_for


@pytest.mark.parametrize(
    ("key", "java_hash"),
    [
        ("", 0),
        ("a", 97),
        ("my-group", -1906497762),
        ("console-consumer-12345", 158455506),
        ("polygenelubricants", -(2**31)),
        ("caf\u00e9", 3045921),
        ("\U0001f600 smile", -1559691765),
    ],
)
def test_keys_are_spread_as_java_does(key: str, java_hash: int) -> None:
    # From String.hashCode itself.
    assert partition_for(key, 50) == (0 if java_hash == -(2**31) else abs(java_hash) % 50)


def test_a_long_key_is_not_remembered_and_lies_where_a_short_one_would() -> None:
    long = "k" * 32_000
    value = 0
    for character in long:
        value = (31 * value + ord(character)) & 0xFFFFFFFF
    assert partition_for(long, 7) == abs(value - (1 << 32) if value >= 1 << 31 else value) % 7


def test_the_topic_of_offsets_is_compacted_and_as_the_settings_want_it() -> None:
    values = {**BROKER_SETTINGS.defaults(), "offsets.topic.num.partitions": 3, "offsets.topic.segment.bytes": 1 << 20}
    topic = offsets_topic(values)
    assert (topic.name, topic.kind, topic.partition_count) == ("__consumer_offsets", "group", 3)
    assert topic.config == {"cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": "1048576"}
