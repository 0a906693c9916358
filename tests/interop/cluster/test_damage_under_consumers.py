"""A byte changes on the disk of a leader while consumers read: they meet a wrong CRC, ask again, and read on."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import TopicPartition as ConfluentPartition

from spark_kafkalite import Consumer, TopicPartition
from spark_kafkalite.processes.kafkalite_cluster import KafkaliteCluster
from spark_kafkalite.records.kernel import scan_headers
from tests.interop.cluster.test_damaged_logs import COUNT, produce, read, segments, wait_until_same
from tests.patience import wait_until

with warnings.catch_warnings():
    # It reads its schemas with a function that Python 3.11 deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    import kafka.errors

pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning")]

# Reads what is there, and yields the values as they come.
Read = Callable[[str, str], Iterator[list[bytes]]]


def by_ours(bootstrap: str, topic: str) -> Iterator[list[bytes]]:
    with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        while True:
            yield [each.value or b"" for each in consumer.poll(100)]


def by_confluent(bootstrap: str, topic: str) -> Iterator[list[bytes]]:
    settings: dict[str, Any] = {"bootstrap.servers": bootstrap, "group.id": topic, "check.crcs": True}
    consumer = ConfluentConsumer({**settings, "auto.offset.reset": "earliest"})
    next_offset = 0
    try:
        consumer.assign([ConfluentPartition(topic, 0, 0)])
        while True:
            # librdkafka 2.16 goes on at an offset that it reads from the wrong place, and so begins at 0 again.
            found = [each for each in consumer.consume(100, 0.1) if each.error() is None]
            yield [each.value() for each in found if each.offset() >= next_offset]
            next_offset = max([next_offset, *(each.offset() + 1 for each in found)])
    finally:
        consumer.close()


def by_kafka_python(bootstrap: str, topic: str) -> Iterator[list[bytes]]:
    """An application that ends at the error, and is started again where it was. (kafka-python 3.0.12 hangs if it polls
    after a wrong CRC, or meets one behind records that the same poll returns.)"""
    partition, next_offset = kafka.TopicPartition(topic, 0), 0
    while True:
        consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, check_crcs=True, max_poll_records=10)
        try:
            consumer.assign([partition])
            consumer.seek(partition, next_offset)
            while True:
                found = consumer.poll(100).get(partition, [])
                next_offset = max([next_offset, *(each.offset + 1 for each in found)])
                yield [each.value for each in found]
        except kafka.errors.CorruptRecordError:
            yield []
        finally:
            consumer.close()


@pytest.mark.parametrize("read_by", [by_ours, by_confluent, by_kafka_python])
def test_a_byte_that_changes_on_the_leaders_disk_keeps_no_consumer(
    cluster: KafkaliteCluster, new_topic: Callable[..., str], read_by: Read
) -> None:
    def change(content: bytes) -> tuple[int, bytes]:
        return content.index(b"305:x") + 10, b"y"

    check_that_it_is_healed(cluster, new_topic(), change, read_by)


@pytest.mark.parametrize("seems_to_be", [296, 316, 300 | 1 << 50])
def test_a_base_offset_that_changes_on_the_leaders_disk_hides_no_record(
    cluster: KafkaliteCluster, new_topic: Callable[..., str], seems_to_be: int
) -> None:
    """No CRC covers it, so other clients pass over the records, or deliver them with other offsets."""

    def change(content: bytes) -> tuple[int, bytes]:
        position = 0
        for header in scan_headers(content):
            if header.base_offset == 300:
                break
            position += header.size_bytes
        return position, seems_to_be.to_bytes(8, "big")

    check_that_it_is_healed(cluster, new_topic(), change, by_ours)


def check_that_it_is_healed(
    cluster: KafkaliteCluster, topic: str, change: Callable[[bytes], tuple[int, bytes]], read_by: Read
) -> None:
    """Change bytes of the batch from offset 300 on, on the leader's disk, and read all. ``change`` returns where in the
    segment, and what is written there."""
    produce(cluster, topic)
    cluster.wait_in_sync(topic)
    leader = cluster.wait_for_leader(topic)
    (path,) = segments(cluster, leader, topic)
    at, written = change(path.read_bytes())
    with path.open("r+b") as file:
        file.seek(at)
        file.write(written)
    found: list[int] = []
    pieces = read_by(cluster.bootstrap, topic)
    try:

        def have_all() -> bool:
            found.extend(int(value.partition(b":")[0]) for value in next(pieces))
            return len(found) >= COUNT

        wait_until(have_all, lambda: f"all {COUNT} records, there are {len(found)}", poll_s=0)
    finally:
        pieces.close()  # type: ignore[attr-defined]
    assert found == list(range(COUNT))
    assert cluster.leader_of(topic) != leader
    lines = [each for each in cluster.broker(leader).stderr_path.read_text().splitlines() if f" {topic}-0: " in each]
    assert [each for each in lines if f"offsets 300 to 309 cannot be read from {path}: " in each]
    wait_until_same(cluster, topic)
    read(cluster, [topic])
