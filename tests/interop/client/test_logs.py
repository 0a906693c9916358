"""Our admin client's calls for logs, against our broker and Apache Kafka."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from spark_kafkalite import Admin, Consumer, Producer
from spark_kafkalite.errors import (
    ConfigError,
    OffsetOutOfRange,
    PolicyViolation,
    UnknownTopicOrPartition,
)
from spark_kafkalite.model import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    HIGH_WATERMARK,
    LATEST_TIERED_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    TopicPartition,
)


@pytest.fixture
def filled(bootstrap: str, topic: str) -> Iterator[list[TopicPartition]]:
    """A topic's four partitions with ten records each, of the last ten seconds; the youngest is offset 4."""
    now_ms = time.time_ns() // 1_000_000
    with Producer(bootstrap_servers=bootstrap) as producer:
        for partition in range(4):
            for number in range(10):
                age_ms = 0 if number == 4 else 10_000 - 500 * number
                producer.send(topic, b"%d" % number, partition=partition, timestamp_ms=now_ms - age_ms)
    yield [TopicPartition(topic, number) for number in range(4)]


def test_records_are_deleted_for_every_reader(bootstrap: str, admin: Admin, filled: list[TopicPartition]) -> None:
    p0, p1, p2, _ = filled
    assert admin.delete_records({p0: 3, p1: HIGH_WATERMARK, p2: 0}) == {p0: 3, p1: 10, p2: 0}
    assert admin.delete_records({p0: 1}) == {p0: 3}
    found = admin.list_offsets(dict.fromkeys(filled, EARLIEST_TIMESTAMP))
    assert [found[each].offset for each in filled] == [3, 10, 0, 0]  # type: ignore[union-attr]
    with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([p0])
        consumer.seek(p0, 3)
        values: list[bytes | None] = []
        while len(values) < 7:
            values += [record.value for record in consumer.poll(5000)]
        assert values == [b"%d" % number for number in range(3, 10)]


def test_what_cannot_be_deleted(admin: Admin, filled: list[TopicPartition]) -> None:
    p0, p1, *_ = filled
    with pytest.raises(OffsetOutOfRange, match=f"{p0}: records before 11"):
        admin.delete_records({p0: 11, p1: 2})
    assert admin.list_offsets({p1: EARLIEST_TIMESTAMP})[p1].offset == 2  # type: ignore[union-attr]
    with pytest.raises(UnknownTopicOrPartition, match="no-such-topic"):
        admin.delete_records({TopicPartition("no-such-topic", 0): 1}, timeout_ms=5000)
    with pytest.raises(UnknownTopicOrPartition, match=f"{p0.topic}-9"):
        admin.delete_records({TopicPartition(p0.topic, 9): 1})
    with pytest.raises(ConfigError, match="before -2"):
        admin.delete_records({p0: -2})
    compacted = f"{p0.topic}-compacted"
    admin.create_topic(compacted, 1, 1, {"cleanup.policy": "compact"})
    with pytest.raises(PolicyViolation, match=compacted):
        admin.delete_records({TopicPartition(compacted, 0): 0})


def test_every_place_in_a_log(admin: Admin, filled: list[TopicPartition]) -> None:
    p0 = filled[0]
    admin.delete_records({p0: 2})

    def place(which: int) -> int | None:
        found = admin.list_offsets({p0: which})[p0]
        return None if found is None else found.offset

    assert (place(LATEST_TIMESTAMP), place(LATEST_TIERED_TIMESTAMP)) == (10, None)
    assert (place(EARLIEST_TIMESTAMP), place(EARLIEST_LOCAL_TIMESTAMP)) == (2, 2)
    assert place(MAX_TIMESTAMP) == 4
    youngest = admin.list_offsets({p0: MAX_TIMESTAMP})[p0]
    assert youngest is not None
    assert place(youngest.timestamp) == 4
    assert place(youngest.timestamp + 1) is None
    assert place(0) == 2


def test_log_directories(admin: Admin, filled: list[TopicPartition]) -> None:
    found = admin.describe_log_dirs(topics=[filled[0].topic])
    (directories,) = found.values()
    (directory,) = [each for each in directories if each.replicas]
    assert sorted(directory.replicas) == filled
    assert all(each.size_bytes > 100 and not each.offset_lag for each in directory.replicas.values())
    assert directory.error is None
    assert directory.total_bytes is not None and directory.usable_bytes is not None
    assert 0 < directory.usable_bytes < directory.total_bytes
    (broker_id,) = found
    everything = admin.describe_log_dirs([broker_id])[broker_id]
    assert set(filled) <= {key for each in everything for key in each.replicas}
    with pytest.raises(ConfigError, match="no live broker 77"):
        admin.describe_log_dirs([77])
