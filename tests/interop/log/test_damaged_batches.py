"""Our readers of a log whose bytes have changed on the broker's disk: what they say, and how one goes on."""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterator

import pytest

from spark_kafkalite import Consumer, ConsumerConnector, Producer
from spark_kafkalite.client.read_schema import READ_SCHEMA
from spark_kafkalite.errors import CorruptMessage
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.processes.cluster import BrokerProcess
from spark_kafkalite.records import layout
from spark_kafkalite.spark.conditions import SparkConditionError
from spark_kafkalite.spark.options.options import reader_options
from spark_kafkalite.spark.reading.offset_ranges import OffsetRange
from spark_kafkalite.spark.reading.partition_reader import read_task
from spark_kafkalite.spark.reading.read_plan import ReadPlan, ReadTask
from tests.patience import PATIENCE_S, wait_until

# Of the second of three batches, and bytes within it: its last value, its length, its magic.
DAMAGES = {
    "crc": (-2, 0x01),
    "length": (layout.BATCH_LENGTH_POSITION + 2, 0x40),
    "magic": (layout.MAGIC_POSITION, 0x08),
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("damaged"), registry_port=0) as running:
        yield running


@pytest.fixture(scope="module", params=list(DAMAGES))
def partition(request: pytest.FixtureRequest, broker: BrokerProcess) -> TopicPartition:
    """A partition with the offsets 0-1, 2-3 and 4-5 in three batches, of which the second is damaged."""
    topic = f"damaged-{request.param}"
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        for first in (0, 2, 4):
            producer.send_batch(topic, [b"value %d" % n for n in (first, first + 1)]).result(PATIENCE_S)
    (segment,) = broker.data_dir.rglob(f"{topic}-0/*.log")
    data = bytearray(segment.read_bytes())
    size_bytes, rest = divmod(len(data), 3)
    assert not rest and data[size_bytes:].startswith(struct.pack(">q", 2))
    position, bits = DAMAGES[request.param]
    at = (size_bytes if position >= 0 else 2 * size_bytes) + position
    with segment.open("r+b") as file:
        file.seek(at)
        file.write(bytes([data[at] ^ bits]))
    return TopicPartition(topic, 0)


def offsets_by_poll(consumer: Consumer) -> list[int]:
    return [record.offset for record in consumer.poll(500)]


def offsets_by_columns(consumer: Consumer) -> list[int]:
    batch = consumer.poll_columns(500)
    return [] if batch is None else batch.column("offset").to_pylist()


@pytest.mark.parametrize("read", [offsets_by_poll, offsets_by_columns])
def test_a_damaged_batch_is_named_and_can_be_passed(
    broker: BrokerProcess,
    partition: TopicPartition,
    read: Callable[[Consumer], list[int]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    named = f"{partition}: the batch at offset 2 cannot be read: "
    settings = {"bootstrap_servers": broker.bootstrap, "auto_offset_reset": "earliest", "retry_backoff_ms": 1}
    with Consumer(**settings) as consumer:
        consumer.assign([partition])
        found: list[int] = []

        def read_so_many(count: int) -> bool:
            found.extend(read(consumer))
            return len(found) >= count

        with pytest.raises(CorruptMessage, match=f"^{named}.* seek .* without the batch"):
            wait_until(lambda: read_so_many(3), "the reader at the damaged batch", poll_s=0)
        assert found == [0, 1] and consumer.position(partition) == 2
        for _ in range(3):
            # It is fetched again each time, and logged once.
            consumer.seek(partition, 2)
            with pytest.raises(CorruptMessage, match=named):
                wait_until(lambda: read(consumer), "the reader at the damaged batch", poll_s=0)
        ours = [each for each in caplog.records if each.name.startswith("spark_kafkalite.client")]
        lines = [each.getMessage() for each in ours if each.levelno >= logging.WARNING]
        assert len(lines) == 1 and lines[0].startswith(f"consumer: {named}")
        consumer.seek(partition, 4)
        wait_until(lambda: read_so_many(4), lambda: f"four records, there are {found}", poll_s=0)
        assert found == [0, 1, 4, 5]


def test_a_message_stream_says_the_same(
    broker: BrokerProcess, partition: TopicPartition, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {
        "group.id": f"of-{partition.topic}",
        "zookeeper.connect": broker.registry_connect,
        "auto.offset.reset": "smallest",
        "consumer.timeout.ms": int(PATIENCE_S * 1000),
    }
    with ConsumerConnector(settings) as connector:
        stream = iter(connector.create_message_streams({partition.topic: 1})[partition.topic][0])
        assert [next(stream).offset for _ in range(2)] == [0, 1]
        with pytest.raises(CorruptMessage, match=f"^{partition}: the batch at offset 2 cannot be read: "):
            next(stream)
    assert f"consumer: {partition}: the batch at offset 2 cannot be read: " in caplog.text


def test_a_spark_task_fails_at_once_and_names_it(broker: BrokerProcess, partition: TopicPartition) -> None:
    given = {
        "kafka.bootstrap.servers": broker.bootstrap,
        "subscribe": partition.topic,
        # Longer than the test may take: the task does not wait for it.
        "kafkaConsumer.pollTimeoutMs": "3600000",
    }
    plan = ReadPlan.of(reader_options(given), READ_SCHEMA)
    rows = read_task(plan, ReadTask((OffsetRange(partition, 0, 6),)))
    with pytest.raises(SparkConditionError, match="KAFKALITE_READ_FAILED") as failed:
        for _ in rows:
            pass
    assert f"{partition}: the batch at offset 2 cannot be read: " in str(failed.value)
    assert "kafka.check.crcs=false" in str(failed.value) and "startingOffsets" in str(failed.value)
    behind = list(read_task(plan, ReadTask((OffsetRange(partition, 4, 6),))))
    assert [offset for batch in behind for offset in batch.column("offset").to_pylist()] == [4, 5]
