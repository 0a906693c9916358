"""How large logs are at some offsets, against our broker and Apache Kafka."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from spark_kafkalite import Admin, Producer
from spark_kafkalite.client.config import ClientConfig
from spark_kafkalite.client.consume.log_samples import SAMPLE_BYTES, LogSample, log_samples
from spark_kafkalite.client.network.cluster import ClusterClient
from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.model import TopicPartition
from tests.patience import PATIENCE_S


@pytest.fixture
def cluster(bootstrap: str) -> Iterator[ClusterClient]:
    client = ClusterClient(ClientConfig((bootstrap,)))
    yield client
    client.close()


def soon() -> Deadline:
    return Deadline.after_ms(1000 * PATIENCE_S)


def fill(bootstrap: str, partition: TopicPartition, values: list[bytes], **settings: object) -> None:
    """Send all values in one batch."""
    with Producer(bootstrap_servers=bootstrap, batch_size=1 << 20, linger_ms=60_000, **settings) as producer:
        for value in values:
            producer.send(partition.topic, value, partition=partition.partition)


def test_a_sample_is_what_lies_in_the_log_from_an_offset_on(
    bootstrap: str, admin: Admin, cluster: ClusterClient, topic: str
) -> None:
    partition = TopicPartition(topic, 0)
    for size in (100, 300):
        fill(bootstrap, partition, [random.randbytes(size) for _ in range(50)])
    (sample,) = log_samples(cluster, {partition: 0}, soon()).values()
    assert sample[:2] == (0, 100)
    assert 50 * 400 < sample.size_bytes < 50 * 420 + 200
    # From within a batch on, what is left of it counts by its records.
    (half,) = log_samples(cluster, {partition: 75}, soon()).values()
    assert half[:2] == (75, 100)
    assert 25 * 300 < half.size_bytes < 25 * 310 + 100
    # There is nothing at the end, nor beyond it, nor where there is no partition.
    for nowhere in ({partition: 100}, {partition: 5_000}, {TopicPartition(topic, 77): 0}):
        assert log_samples(cluster, nowhere, soon()) == {}


def test_bytes_are_those_of_the_log_compressed(bootstrap: str, cluster: ClusterClient, topic: str) -> None:
    partition = TopicPartition(topic, 0)
    fill(bootstrap, partition, [b"x" * 1_000] * 100, compression_type="zstd")
    (sample,) = log_samples(cluster, {partition: 0}, soon()).values()
    assert sample[:2] == (0, 100)
    assert 61 < sample.size_bytes < 5_000


def test_batches_above_the_size_of_a_sample_come_one_by_one(
    bootstrap: str, admin: Admin, cluster: ClusterClient
) -> None:
    admin.create_topic("large-batches", 6, 1)
    partitions = [TopicPartition("large-batches", number) for number in range(6)]
    for partition in partitions[:5]:
        fill(bootstrap, partition, [random.randbytes(SAMPLE_BYTES + 100 * partition.partition)] * 2)
    found = log_samples(cluster, dict.fromkeys(partitions, 0), soon())
    assert sorted(found) == partitions[:5]
    for partition, sample in found.items():
        assert sample[:2] == (0, 2)
        assert 0 < sample.size_bytes - 2 * (SAMPLE_BYTES + 100 * partition.partition) < 200


def test_offsets_below_the_log_count_as_empty(bootstrap: str, admin: Admin, cluster: ClusterClient, topic: str) -> None:
    partition = TopicPartition(topic, 0)
    fill(bootstrap, partition, [random.randbytes(100) for _ in range(20)])
    (whole,) = log_samples(cluster, {partition: 0}, soon()).values()
    admin.delete_records({partition: 10})
    (left,) = log_samples(cluster, {partition: 0}, soon()).values()
    assert left == LogSample(0, 20, whole.size_bytes // 2)
