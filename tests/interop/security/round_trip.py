"""The way of records through every client: a topic made, records sent, read in a group, committed, and counted."""

from __future__ import annotations

from collections.abc import Mapping

from spark_kafkalite import Admin, Consumer, Producer, TopicPartition
from tests.interop.support.collect import collected
from tests.pool.names import own_numbers

PARTITIONS = 4
_numbers = own_numbers()


def new_name() -> str:
    """Return a name that no other topic or group of this run has."""
    return f"security-{next(_numbers)}"


def round_trip(settings: Mapping[str, object], count: int = 200) -> None:
    """Send ``count`` records and read them in a group with clients of these settings: each is there once, in order."""
    topic = new_name()
    with Admin(settings) as admin:
        admin.create_topic(topic, PARTITIONS, 1)
        with Producer(settings) as producer:
            for number in range(count):
                producer.send(topic, b"%d" % number, partition=number % PARTITIONS)
        with Consumer(settings, group_id=topic, auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
            consumer.subscribe([topic])
            assert_numbered(read(consumer, count), count)
            consumer.commit()
        ends = {TopicPartition(topic, number): count // PARTITIONS for number in range(PARTITIONS)}
        committed = admin.group_offsets(topic)
        assert {partition: offset.offset for partition, offset in committed.items()} == ends


def read(consumer: Consumer, count: int) -> dict[int, list[int]]:
    """Return the numbers in the records of each partition: ``count`` of them, or more if more come along."""
    found: dict[int, list[int]] = {}
    for record in collected(lambda: consumer.poll(500), count):
        assert record.value is not None
        found.setdefault(record.partition, []).append(int(record.value))
    return found


def assert_numbered(found: Mapping[int, list[int]], count: int) -> None:
    """Check that the partitions hold the numbers below ``count``, dealt out in turn: each once, in order."""
    assert found == {number: list(range(number, count, PARTITIONS)) for number in range(PARTITIONS)}
