"""Our consumer against our broker and Apache Kafka: positions, limits, columns, and what must never be seen."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Iterator

import confluent_kafka
import pyarrow as pa
import pytest
from crc32c import crc32c

from spark_kafkalite import Admin, Consumer, Producer, Record
from spark_kafkalite.errors import ClosedError, ConfigError, OffsetOutOfRange, UnknownTopicOrPartition
from spark_kafkalite.model import TimestampType, TopicPartition
from spark_kafkalite.records import layout
from tests.interop.support.collect import collected
from tests.interop.support.raw_client import RawClient
from tests.lab.batches import make_batch
from tests.patience import PATIENCE_S, wait_until

START_MS = 1_700_000_000_000


@pytest.fixture
def filled(bootstrap: str, topic: str) -> str:
    """A topic with the values 0 to 999 in partition 0, a second apart, and 100 values in partition 1."""
    with Producer(bootstrap_servers=bootstrap, batch_size=2_000) as producer:
        for number in range(1_000):
            producer.send(topic, b"%d" % number, partition=0, timestamp_ms=START_MS + number * 1_000)
        for number in range(100):
            producer.send(
                topic, b"%d" % number, b"k", partition=1, timestamp_ms=START_MS, headers=[("n", b"%d" % number)]
            )
    return topic


@pytest.fixture
def consumer(bootstrap: str) -> Iterator[Consumer]:
    with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest", fetch_max_wait_ms=100) as client:
        yield client


def take(consumer: Consumer, count: int, max_records: int | None = None) -> list[Record]:
    return collected(lambda: consumer.poll(500, max_records), count)


def values(records: list[Record]) -> list[int]:
    return [int(record.value or b"") for record in records]


def test_records_come_in_order_and_as_many_as_asked(consumer: Consumer, filled: str) -> None:
    consumer.assign([(filled, 0)])
    records = take(consumer, 7, 7)
    assert values(records) == list(range(7))
    assert consumer.position((filled, 0)) == 7
    assert [record.offset for record in records] == list(range(7))
    assert (records[3].timestamp, records[3].timestamp_type) == (START_MS + 3_000, TimestampType.CREATE_TIME)
    assert values(take(consumer, 993)) == list(range(7, 1_000))
    assert consumer.poll(50) == []
    assert consumer.position((filled, 0)) == 1_000
    assert consumer.high_watermark((filled, 0)) == 1_000


def test_a_poll_with_nothing_to_give_waits_for_its_time(consumer: Consumer, filled: str) -> None:
    consumer.assign([(filled, 3)])
    started = time.monotonic()
    assert consumer.poll(200) == []
    assert time.monotonic() - started > 0.15


def test_a_waiting_poll_gets_what_arrives(consumer: Consumer, filled: str, bootstrap: str) -> None:
    consumer.assign([(filled, 2)])
    assert consumer.poll(300) == []
    with Producer(bootstrap_servers=bootstrap, linger_ms=0) as producer:
        producer.send(filled, b"7", partition=2).result(PATIENCE_S)
        assert values(take(consumer, 1)) == [7]


def test_seeking_to_offset_time_beginning_and_end(consumer: Consumer, filled: str, bootstrap: str) -> None:
    consumer.assign([(filled, 0)])
    assert values(take(consumer, 5, 5)) == [0, 1, 2, 3, 4]
    consumer.seek((filled, 0), 990)
    assert values(take(consumer, 10)) == list(range(990, 1_000))
    consumer.seek_to_time(START_MS + 500_500)
    assert values(take(consumer, 1, 1)) == [501]
    consumer.seek_to_beginning()
    assert values(take(consumer, 1, 1)) == [0]
    consumer.seek_to_end([(filled, 0)])
    assert consumer.position((filled, 0)) == 1_000
    assert consumer.poll(50) == []
    consumer.seek_to_time(START_MS + 10_000_000)
    assert consumer.position((filled, 0)) == 1_000


def test_offsets_can_be_looked_up(consumer: Consumer, filled: str) -> None:
    partitions = consumer.partitions_for(filled)
    assert partitions == [TopicPartition(filled, number) for number in range(4)]
    assert consumer.beginning_offsets(partitions) == dict.fromkeys(partitions, 0)
    assert list(consumer.end_offsets(partitions).values()) and consumer.end_offsets([(filled, 1)]) == {
        TopicPartition(filled, 1): 100
    }
    found = consumer.offsets_for_times(
        {TopicPartition(filled, 0): START_MS + 1, TopicPartition(filled, 1): START_MS + 1}
    )
    answer = found[TopicPartition(filled, 0)]
    assert answer is not None and (answer.offset, answer.timestamp) == (1, START_MS + 1_000)
    assert found[TopicPartition(filled, 1)] is None


def test_columns_are_those_of_the_spark_source(consumer: Consumer, filled: str) -> None:
    consumer.assign([(filled, 1)])
    batches: list[pa.RecordBatch] = []

    def all_read() -> bool:
        if (batch := consumer.poll_columns(500, max_rows=30)) is not None:
            batches.append(batch)
        return sum(batch.num_rows for batch in batches) >= 100

    wait_until(all_read, lambda: f"100 rows in {[batch.num_rows for batch in batches]}", poll_s=0)
    assert max(batch.num_rows for batch in batches) <= 30
    table = pa.Table.from_batches(batches)
    assert table.schema.names == [
        "key",
        "value",
        "topic",
        "partition",
        "offset",
        "timestamp",
        "timestampType",
        "headers",
    ]
    assert table.schema.field("timestamp").type == pa.timestamp("us", tz="UTC")
    rows = table.to_pylist()
    assert [row["offset"] for row in rows] == list(range(100))
    assert rows[42]["value"] == b"42" and rows[42]["key"] == b"k"
    assert (rows[42]["topic"], rows[42]["partition"], rows[42]["timestampType"]) == (filled, 1, 0)
    assert rows[42]["headers"] == [{"key": "n", "value": b"42"}]
    assert round(rows[42]["timestamp"].timestamp() * 1000) == START_MS
    assert consumer.poll_columns(20) is None


def test_a_timestamp_that_brokers_admit_and_microseconds_cannot_hold(
    consumer: Consumer, bootstrap: str, topic: str
) -> None:
    before_arrow_ms = -(2**62)
    batch = make_batch([b"old"])
    # Base and maximal timestamp stand side by side; our producer refuses such times.
    struct.pack_into(">qq", batch, layout.MAX_TIMESTAMP_POSITION - 8, before_arrow_ms, before_arrow_ms)
    struct.pack_into(">I", batch, layout.CRC_POSITION, crc32c(bytes(batch[layout.CRC_START :])))
    # Waits for the partition's leader, which the raw client does not.
    assert consumer.end_offsets([(topic, 0)]) == {TopicPartition(topic, 0): 0}
    with RawClient(bootstrap) as client:
        assert client.produce(topic, batch).error_code == 0
    consumer.assign([(topic, 0)])
    columns = consumer.poll_columns(PATIENCE_S * 1000)
    assert columns is not None and columns.column("value").to_pylist() == [b"old"]
    assert columns.column("timestamp").view(pa.int64()).to_pylist() == [-((2**63 - 1) // 1000 * 1000)]
    assert consumer.position((topic, 0)) == 1
    consumer.seek((topic, 0), 0)
    assert [record.timestamp for record in take(consumer, 1)] == [before_arrow_ms]


def test_records_and_columns_share_a_position(consumer: Consumer, filled: str) -> None:
    consumer.assign([(filled, 0)])
    assert values(take(consumer, 10, 10)) == list(range(10))
    batch = consumer.poll_columns(PATIENCE_S * 1000, max_rows=5)
    assert batch is not None and batch.column("value").to_pylist() == [b"%d" % n for n in range(10, 15)]
    assert values(take(consumer, 1, 1)) == [15]


def test_paused_partitions_wait(consumer: Consumer, filled: str) -> None:
    consumer.assign([(filled, 0), (filled, 1)])
    first = take(consumer, 10, 10)
    paused = first[0].partition
    consumer.pause([(filled, paused)])
    assert consumer.paused() == {TopicPartition(filled, paused)}
    others = take(consumer, 100 if paused == 0 else 1_000)
    assert {record.partition for record in others} == {1 - paused}
    consumer.resume([(filled, paused)])
    rest = take(consumer, 1_100 - len(first) - len(others))
    got = sorted((record.partition, record.offset) for record in (*first, *others, *rest))
    assert got == [*((0, n) for n in range(1_000)), *((1, n) for n in range(100))]


def test_assigning_anew_keeps_the_position_of_what_stays(consumer: Consumer, filled: str) -> None:
    consumer.assign([(filled, 0)])
    take(consumer, 5, 5)
    consumer.assign([(filled, 0), (filled, 1)])
    assert consumer.assignment() == {TopicPartition(filled, 0), TopicPartition(filled, 1)}
    records = take(consumer, 1_095)
    assert values([record for record in records if record.partition == 0]) == list(range(5, 1_000))


def test_the_reset_policies(bootstrap: str, filled: str) -> None:
    with Consumer(bootstrap_servers=bootstrap) as consumer:
        consumer.assign([(filled, 0)])
        assert consumer.position((filled, 0)) == 1_000
    with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="none") as consumer:
        consumer.assign([(filled, 0)])
        with pytest.raises(OffsetOutOfRange, match=r"auto\.offset\.reset=none"):
            take(consumer, 1)
        consumer.seek((filled, 0), 999)
        assert values(take(consumer, 1)) == [999]
        consumer.seek((filled, 0), 5_000)
        with pytest.raises(OffsetOutOfRange, match="offset 5000 is not in the log"):
            take(consumer, 1)


def test_an_offset_out_of_range_is_reset(consumer: Consumer, filled: str) -> None:
    consumer.assign([(filled, 0)])
    consumer.seek((filled, 0), 123_456)
    assert values(take(consumer, 1, 1)) == [0]


def test_unknown_partitions_are_named(consumer: Consumer, filled: str) -> None:
    with pytest.raises(UnknownTopicOrPartition, match="no-such-topic"):
        consumer.partitions_for("no-such-topic")
    with pytest.raises(UnknownTopicOrPartition, match=f"{filled}-9"):
        consumer.end_offsets([(filled, 9)])
    with pytest.raises(ConfigError, match="not assigned"):
        consumer.seek((filled, 0), 1)
    with pytest.raises(ConfigError, match=r"subscribe\(\) needs a group: set group\.id"):
        consumer.subscribe([filled])


def test_closing_from_another_thread_ends_a_poll(consumer: Consumer, filled: str) -> None:
    consumer.assign([(filled, 3)])
    threading.Timer(0.3, consumer.close).start()
    with pytest.raises(ClosedError):
        # Longer than this test may take.
        consumer.poll(600_000)
    with pytest.raises(ClosedError):
        consumer.assign([])


def test_waking_up_ends_a_poll_with_nothing(consumer: Consumer, filled: str) -> None:
    consumer.assign([(filled, 3)])
    threading.Timer(0.3, consumer.wakeup).start()
    # Longer than this test may take.
    assert consumer.poll(600_000) == []


def test_small_fetches_and_little_memory_lose_nothing(bootstrap: str, filled: str) -> None:
    with Consumer(
        bootstrap_servers=bootstrap,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=100,
        fetch_max_bytes=100,
        queued_max_bytes=1_000,
        fetch_max_wait_ms=50,
    ) as consumer:
        consumer.assign(consumer.partitions_for(filled))
        records = take(consumer, 1_100, 13)
    assert sorted((record.partition, record.offset) for record in records) == [
        *((0, n) for n in range(1_000)),
        *((1, n) for n in range(100)),
    ]


def test_a_value_larger_than_a_fetch_arrives(bootstrap: str, topic: str) -> None:
    value = bytes(range(256)) * 3_000
    with Producer(bootstrap_servers=bootstrap, compression_type="none") as producer:
        producer.send(topic, value, partition=0).result(PATIENCE_S)
    with Consumer(
        bootstrap_servers=bootstrap, auto_offset_reset="earliest", max_partition_fetch_bytes=1_000
    ) as consumer:
        consumer.assign([(topic, 0)])
        assert [record.value for record in take(consumer, 1)] == [value]


@pytest.mark.kafka
def test_aborted_transactions_are_seen_only_uncommitted(apache_kafka: object) -> None:
    bootstrap = apache_kafka.bootstrap  # type: ignore[attr-defined]
    topic = "with-transactions"
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topic(topic, 1, 1, if_not_exists=True)
    committed, aborted = [], []
    producers = [
        confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": f"t{number}", "linger.ms": 0})
        for number in range(2)
    ]
    for producer in producers:
        producer.init_transactions(30)
    for turn in range(12):
        # Two transactions at a time, mixed in the log, so that a batch's producer matters and not only its place.
        for producer in producers:
            producer.begin_transaction()
        for part in range(3):
            for number, producer in enumerate(producers):
                value = b"%d-%d-%d" % (turn, number, part)
                producer.produce(topic, value, partition=0)
                producer.flush(PATIENCE_S)
                aborts = (turn + number) % 3 == 0
                (aborted if aborts else committed).append(value)
        for number, producer in enumerate(producers):
            if (turn + number) % 3 == 0:
                producer.abort_transaction(30)
            else:
                producer.commit_transaction(30)
    for isolation, expected in (("read_committed", committed), ("read_uncommitted", [*committed, *aborted])):
        # Small fetches cut transactions apart; a large one holds several.
        for fetch_bytes in (200, 1_000_000):
            with Consumer(
                bootstrap_servers=bootstrap,
                auto_offset_reset="earliest",
                isolation_level=isolation,
                max_partition_fetch_bytes=fetch_bytes,
                fetch_max_wait_ms=50,
            ) as consumer:
                consumer.assign([(topic, 0)])
                records = take(consumer, len(expected))
                assert sorted(record.value or b"" for record in records) == sorted(expected)
                end = consumer.end_offsets([(topic, 0)])[TopicPartition(topic, 0)]

                def is_behind_the_last_marker(consumer: Consumer = consumer, end: int = end) -> bool:
                    # Though it is no record.
                    assert consumer.poll(300) == []
                    return bool(consumer.position((topic, 0)) == end)

                wait_until(is_behind_the_last_marker, f"the consumer at {end}", poll_s=0)
