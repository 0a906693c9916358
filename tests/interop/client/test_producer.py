"""Our producer against our broker and Apache Kafka; what it wrote is read by our consumer and by confluent-kafka."""

from __future__ import annotations

import threading
import time
from collections import Counter

import pyarrow as pa
import pytest
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import TopicPartition as ConfluentPartition

from spark_kafkalite import Admin, Consumer, Producer, Record
from spark_kafkalite.client.produce.delivery import RecordMetadata
from spark_kafkalite.errors import (
    ClosedError,
    ConfigError,
    InvalidConfig,
    InvalidTimestamp,
    MessageTooLarge,
    SerializationError,
    UndeliveredRecords,
    UnknownTopicOrPartition,
)
from spark_kafkalite.model import TopicPartition
from tests.interop.support.collect import collected
from tests.patience import PATIENCE_S, wait_until


def read_all(bootstrap: str, topic: str, count: int, **settings: object) -> list[Record]:
    with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest", **settings) as consumer:
        consumer.assign(consumer.partitions_for(topic))
        return collected(lambda: consumer.poll(1_000, 10_000), count)


def read_with_confluent(bootstrap: str, topic: str, count: int) -> list[tuple[int, bytes | None, bytes | None]]:
    consumer = ConfluentConsumer(
        {"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False, "check.crcs": True}
    )
    consumer.assign([ConfluentPartition(topic, number, 0) for number in range(4)])
    try:
        messages = collected(lambda: consumer.consume(1_000, 0.5), count)
    finally:
        consumer.close()
    assert [message.error() for message in messages if message.error() is not None] == []
    return [(message.partition(), message.key(), message.value()) for message in messages]


def test_a_record_arrives_with_all_its_parts(bootstrap: str, topic: str) -> None:
    with Producer(bootstrap_servers=bootstrap) as producer:
        metadata = producer.send(
            topic, b"value", b"key", partition=2, headers=[("a", b"1"), ("a", None)], timestamp_ms=1_700_000_000_123
        ).result(PATIENCE_S)
    assert metadata == RecordMetadata(topic, 2, 0, 1_700_000_000_123)
    (record,) = read_all(bootstrap, topic, 1)
    assert (record.partition, record.offset, record.timestamp) == (2, 0, 1_700_000_000_123)
    assert (record.key, record.value, record.headers) == (b"key", b"value", [("a", b"1"), ("a", None)])


@pytest.mark.parametrize(("codec", "low", "high"), [("gzip", 1, 9), ("lz4", 1, 12), ("zstd", 1, 19)])
def test_levels_of_compression_change_the_size(bootstrap: str, topic: str, codec: str, low: int, high: int) -> None:
    values = [b"%d" % (number * 7919 % 10007) for number in range(5_000)]
    for partition, level in enumerate((low, high)):
        settings = {f"compression_{codec}_level": level, "compression_type": codec}
        with Producer(bootstrap_servers=bootstrap, **settings) as producer:
            for value in values[:2_500]:
                producer.send(topic, value, partition=partition)
            producer.send_batch(topic, [{"value": value, "partition": partition} for value in values[2_500:]])
    with Admin(bootstrap_servers=bootstrap) as admin:
        (directories,) = admin.describe_log_dirs().values()
    low_bytes, high_bytes = (
        next(each.replicas[TopicPartition(topic, number)].size_bytes for each in directories) for number in range(2)
    )
    assert low_bytes > high_bytes > 0
    assert sorted(record.value for record in read_all(bootstrap, topic, 10_000)) == sorted(values * 2)


def test_tombstones_and_empty_values_stay_apart(bootstrap: str, topic: str) -> None:
    with Producer(bootstrap_servers=bootstrap) as producer:
        for value in (None, b"", b"x"):
            producer.send(topic, value, b"", partition=0)
    records = read_all(bootstrap, topic, 3)
    assert [(record.key, record.value) for record in records] == [(b"", None), (b"", b""), (b"", b"x")]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_codec_and_acks(bootstrap: str, topic: str, codec: str, acks: str) -> None:
    with Producer(bootstrap_servers=bootstrap, compression_type=codec, acks=acks, linger_ms=2) as producer:
        if acks == "0":
            # A broker that has only just made a partition may refuse a batch, and with acks=0 nobody would know.
            with Consumer(bootstrap_servers=bootstrap) as asking:
                asking.end_offsets(asking.partitions_for(topic))
        for number in range(2_000):
            producer.send(topic, b"%d" % number, b"%d" % (number % 17))
        producer.send_batch(topic, [{"value": b"%d" % number, "key": b"k"} for number in range(2_000, 3_000)])
        producer.flush(PATIENCE_S)
    expected = {b"%d" % number for number in range(3_000)}
    records = read_all(bootstrap, topic, 3_000)
    assert Counter(record.value for record in records) == Counter(expected)
    if acks == "all":
        assert {value for _, _, value in read_with_confluent(bootstrap, topic, 3_000)} == expected
    by_partition: dict[tuple[int, bytes | None], list[int]] = {}
    for record in records:
        by_partition.setdefault((record.partition, record.key), []).append(int(record.value or b""))
    assert all(numbers == sorted(numbers) for numbers in by_partition.values())


def test_a_new_topic_has_its_records_in_order_without_idempotence(bootstrap: str, admin: Admin) -> None:
    # A broker may refuse the first batches of a partition that it has only just made, and take those behind them.
    for name in (f"just-made-{number}" for number in range(5)):
        admin.create_topic(name, 40, 1)
        with Producer(bootstrap_servers=bootstrap, acks=1, linger_ms=0, batch_size=100) as producer:
            for number in range(1_000):
                producer.send(name, b"%d" % number, partition=number % 40)
        found: dict[int, list[int]] = {}
        for record in read_all(bootstrap, name, 1_000):
            found.setdefault(record.partition, []).append(int(record.value or b""))
        assert found == {partition: list(range(partition, 1_000, 40)) for partition in range(40)}


def test_without_idempotence(bootstrap: str, topic: str) -> None:
    with Producer(bootstrap_servers=bootstrap, enable_idempotence=False) as producer:
        assert producer.send(topic, b"x", partition=0).result(PATIENCE_S).offset == 0
        assert producer.send(topic, b"x", partition=0).result(PATIENCE_S).offset == 1


def test_sync_returns_when_it_is_acknowledged(bootstrap: str, topic: str) -> None:
    with Producer(bootstrap_servers=bootstrap, producer_type="sync") as producer:
        delivery = producer.send(topic, b"x", partition=0)
        assert delivery.done() and delivery.result(0).offset == 0
        assert producer.send_batch(topic, [b"y", b"z"]).done()


def test_callbacks_come_with_metadata_and_their_errors_are_logged(
    bootstrap: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[tuple[RecordMetadata | None, Exception | None]] = []

    def broken(metadata: RecordMetadata | None, error: Exception | None) -> None:
        raise RuntimeError("from the callback")

    with Producer(bootstrap_servers=bootstrap) as producer:
        producer.send(topic, b"a", partition=1, on_delivery=broken)
        producer.send(topic, b"b", partition=1, on_delivery=lambda metadata, error: seen.append((metadata, error)))
        producer.flush(PATIENCE_S)
        producer.close()
    assert [(metadata.offset, error) for metadata, error in seen if metadata] == [(1, None)]
    assert "from the callback" in caplog.text


def test_the_callback_of_a_batch_comes_once_for_all(bootstrap: str, topic: str) -> None:
    finished = threading.Event()
    calls = []

    def count(delivery: object) -> None:
        calls.append(delivery)
        finished.set()

    with Producer(bootstrap_servers=bootstrap, max_request_size=2_000, batch_size=1_000) as producer:
        delivery = producer.send_batch(topic, [b"x" * 500] * 20, on_delivery=count)
        assert finished.wait(PATIENCE_S)
        assert delivery.done() and calls == [delivery]
        ranges = delivery.result(0)
    assert sum(each.record_count for each in ranges) == delivery.record_count == 20
    assert len(ranges) > 1


def test_arrow_columns_arrive_as_they_are(bootstrap: str, topic: str) -> None:
    table = pa.table(
        {
            "key": pa.array([b"k0", None, b"k2", b"k3"], pa.binary()),
            "value": pa.array(["v0", "v1", None, "v3"], pa.string()),
            "partition": pa.array([3, 0, None, 3], pa.int32()),
            "timestamp": pa.array([1_000_000, 2_000_000, 3_000_000, 4_000_000], pa.timestamp("us", tz="UTC")),
            "headers": pa.array(
                [[("h", b"1")], None, [], [("a", None), ("b", b"")]],
                pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            ),
        }
    )
    with Producer(bootstrap_servers=bootstrap) as producer:
        # A slice, so that every buffer has an offset.
        both = pa.concat_tables([table, table]).combine_chunks()
        producer.send_batch(topic, both.slice(4, 4)).result(PATIENCE_S)
    rows = {record.timestamp: record for record in read_all(bootstrap, topic, 4)}
    assert [rows[t].key for t in (1_000, 2_000, 3_000, 4_000)] == [b"k0", None, b"k2", b"k3"]
    assert [rows[t].value for t in (1_000, 2_000, 3_000, 4_000)] == [b"v0", b"v1", None, b"v3"]
    assert [rows[t].partition for t in (1_000, 2_000, 4_000)] == [3, 0, 3]
    assert [rows[t].headers for t in (1_000, 2_000, 3_000, 4_000)] == [[("h", b"1")], [], [], [("a", None), ("b", b"")]]


def test_a_topic_column_spreads_rows_over_topics(bootstrap: str, topic: str, admin: Admin) -> None:
    other = f"{topic}-other"
    admin.create_topic(other, 1, 1)
    table = pa.table({"topic": [topic, other, topic], "value": [b"0", b"1", b"2"]})
    with Producer(bootstrap_servers=bootstrap) as producer:
        producer.send_batch(None, table).result(PATIENCE_S)
        producer.send_batch(None, [{"topic": other, "value": b"3"}]).result(PATIENCE_S)
    assert {record.value for record in read_all(bootstrap, topic, 2)} == {b"0", b"2"}
    assert [record.value for record in read_all(bootstrap, other, 2)] == [b"1", b"3"]


def test_columns_and_records_with_a_key_go_to_the_same_partition(bootstrap: str, topic: str) -> None:
    keys = [b"key-%d" % number for number in range(200)]
    with Producer(bootstrap_servers=bootstrap) as producer:
        for key in keys:
            producer.send(topic, b"record", key)
        producer.send_batch(topic, pa.table({"key": keys, "value": [b"column"] * 200})).result(PATIENCE_S)
    where: dict[bytes | None, set[int]] = {}
    for record in read_all(bootstrap, topic, 400):
        where.setdefault(record.key, set()).add(record.partition)
    assert set(where) == set(keys)
    assert all(len(partitions) == 1 for partitions in where.values())
    assert len(set.union(*where.values())) == 4


@pytest.mark.parametrize("partitioner", ["round_robin", "random"])
def test_records_without_key_are_spread(bootstrap: str, topic: str, partitioner: str) -> None:
    with Producer(bootstrap_servers=bootstrap, partitioner=partitioner) as producer:
        for _ in range(100):
            producer.send(topic, b"x")
        producer.send_batch(topic, [b"y"] * 100).result(PATIENCE_S)
    for value in (b"x", b"y"):
        spread = Counter(record.partition for record in read_all(bootstrap, topic, 200) if record.value == value)
        assert len(spread) == 4 and sum(spread.values()) == 100


def test_a_partitioner_of_the_user(bootstrap: str, topic: str) -> None:
    def by_value(topic: str, key: bytes | None, value: bytes | None, count: int) -> int:
        return int(value or b"") % count

    with Producer(bootstrap_servers=bootstrap, partitioner=by_value) as producer:
        for number in range(8):
            producer.send(topic, b"%d" % number)
        producer.send_batch(topic, [b"%d" % number for number in range(8, 16)])
    assert all(int(record.value or b"") % 4 == record.partition for record in read_all(bootstrap, topic, 16))


def test_batches_that_a_topic_finds_too_large_are_split(bootstrap: str, topic: str, admin: Admin) -> None:
    small = f"{topic}-small"
    admin.create_topic(small, 1, 1, {"max.message.bytes": "2000"})
    seen: list[RecordMetadata | None] = []
    with Producer(bootstrap_servers=bootstrap, batch_size=60_000, linger_ms=50) as producer:
        deliveries = [
            producer.send(small, b"%04d" % number * 50, on_delivery=lambda metadata, error: seen.append(metadata))
            for number in range(100)
        ]
        whole = producer.send_batch(small, [b"%04d" % number * 50 for number in range(100, 150)])
        offsets = [delivery.result(PATIENCE_S).offset for delivery in deliveries]
        assert sum(each.record_count for each in whole.result(PATIENCE_S)) == 50
        with pytest.raises(MessageTooLarge, match=r"small-0: the broker refused a batch of 1 records"):
            producer.send(small, b"x" * 3_000).result(PATIENCE_S)
        # The sequence goes on after the refused record.
        assert producer.send(small, b"after").result(PATIENCE_S).offset == 150
    assert offsets == list(range(100))
    assert [metadata.offset for metadata in seen if metadata] == offsets
    values = [record.value for record in read_all(bootstrap, small, 151)]
    assert values == [*(b"%04d" % number * 50 for number in range(150)), b"after"]


def test_a_record_above_max_request_size_is_refused_here(bootstrap: str, topic: str) -> None:
    with Producer(bootstrap_servers=bootstrap, max_request_size=1_000) as producer:
        with pytest.raises(MessageTooLarge, match=r"max\.request\.size=1000"):
            producer.send(topic, b"x" * 1_000)
        with pytest.raises(MessageTooLarge, match=r"max\.request\.size=1000"):
            producer.send_batch(topic, [b"x" * 1_000])


def test_what_the_broker_refuses_fails_alone(bootstrap: str, topic: str, admin: Admin) -> None:
    strict = f"{topic}-strict"
    admin.create_topic(strict, 1, 1, {"message.timestamp.before.max.ms": "3600000"})
    with Producer(bootstrap_servers=bootstrap, linger_ms=0) as producer:
        old = producer.send(strict, b"x", timestamp_ms=1)
        with pytest.raises(InvalidTimestamp) as refused:
            old.result(PATIENCE_S)
        assert str(refused.value).count("record 0:") == 1
        assert producer.send(strict, b"y").result(PATIENCE_S).offset == 0


def test_records_that_are_refused_for_themselves_leave_the_others_in_their_order(
    bootstrap: str, topic: str, admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    picky = f"{topic}-picky"
    admin.create_topic(picky, 2, 1, {"message.timestamp.before.max.ms": "86400000", "max.message.bytes": "20000"})
    now_ms = int(time.time() * 1000)
    # At the beginning, two in a row, and the last one.
    refused = {
        0: InvalidTimestamp,
        40: InvalidTimestamp,
        42: InvalidTimestamp,
        70: MessageTooLarge,
        99: InvalidTimestamp,
    }

    def record(batch: int, row: int) -> dict[str, object]:
        kind = refused.get(row)
        return {
            "key": b"%d" % (row % 2),
            "value": b"%d %d" % (batch, row) + b" " * (30_000 if kind is MessageTooLarge else 100),
            "timestamp": 1 if kind is InvalidTimestamp else now_ms,
            "partition": row % 2,
        }

    with Producer(bootstrap_servers=bootstrap) as producer:
        deliveries = [
            producer.send_batch(
                picky, pa.RecordBatch.from_pylist([record(batch, row) for row in range(100)]), isolate_refused=True
            )
            for batch in range(5)
        ]
        for delivery in deliveries:
            assert {each.row: type(each.error) for each in delivery.refused()} == refused
        assert producer.send_batch(picky, [b"after"]).result(PATIENCE_S)
    kept = [row for row in range(100) if row not in refused]
    read = read_all(bootstrap, picky, 5 * len(kept) + 1)
    for partition in range(2):
        values = [(each.value or b"").split() for each in read if each.partition == partition]
        wanted = [[b"%d" % batch, b"%d" % row] for batch in range(5) for row in kept if row % 2 == partition]
        assert [each for each in values if each != [b"after"]] == wanted
    assert caplog.messages == []


def test_without_isolation_the_batch_of_a_refused_record_fails(bootstrap: str, topic: str, admin: Admin) -> None:
    picky = f"{topic}-picky"
    admin.create_topic(picky, 1, 1, {"message.timestamp.before.max.ms": "3600000"})
    with Producer(bootstrap_servers=bootstrap) as producer:
        delivery = producer.send_batch(picky, [{"value": b"x"}, {"value": b"y", "timestamp": 1}])
        with pytest.raises(InvalidTimestamp):
            delivery.result(PATIENCE_S)
        assert producer.send(picky, b"z").result(PATIENCE_S).offset == 0


def test_bad_arguments_say_what_is_wrong(bootstrap: str, topic: str) -> None:
    with Producer(bootstrap_servers=bootstrap, max_block_ms=4_000) as producer:
        with pytest.raises(SerializationError, match="value"):
            producer.send(topic, "text")  # type: ignore[arg-type]
        with pytest.raises(SerializationError, match="key"):
            producer.send(topic, b"x", 7)  # type: ignore[arg-type]
        with pytest.raises(UnknownTopicOrPartition, match="partitions 0 to 3"):
            producer.send(topic, b"x", partition=4)
        with pytest.raises(UnknownTopicOrPartition, match="partitions 0 to 3"):
            producer.send_batch(topic, [{"value": b"x", "partition": 4}])
        for too_large in ([{"value": b"x", "partition": 2**31}], pa.table({"value": [b"x"], "partition": [2**31]})):
            with pytest.raises(UnknownTopicOrPartition, match="2147483648: it must be"):
                producer.send_batch(topic, too_large)
        with pytest.raises(TypeError, match="give timestamp_ms="):
            producer.send(topic, b"x", timestamp=5)  # type: ignore[arg-type]
        with pytest.raises(SerializationError, match=r"Topic name is invalid: '\.+' is not allowed"):
            producer.send("..", b"x")
        with pytest.raises(SerializationError, match="no column 'value'"):
            producer.send_batch(topic, pa.table({"values": [b"x"]}))
        with pytest.raises(SerializationError, match="'keys'"):
            producer.send_batch(topic, [{"value": b"x", "keys": b"k"}])
        uncounted = pa.table({"value": [b"x"], "topic": [topic]})
        for name, records in ((topic, uncounted), (topic, [b"x"]), (None, uncounted.to_batches()[0])):
            with pytest.raises(ConfigError, match="isolate_refused counts rows within one Arrow record batch"):
                producer.send_batch(name, records, isolate_refused=True)
        with pytest.raises(ConfigError, match="give a topic"):
            producer.send_batch(None, [b"x"])
        with pytest.raises(SerializationError, match="use send"):
            producer.send_batch(topic, b"x")
        assert producer.send_batch(topic, []).result(1) == []


def refusing(topic: str, admin: Admin) -> str:
    """A topic of two partitions that refuses records of 1970."""
    admin.create_topic(f"{topic}-refusing", 2, 1, {"message.timestamp.before.max.ms": "3600000"})
    return f"{topic}-refusing"


def test_flush_returns_when_the_callbacks_have_been_called(bootstrap: str, topic: str) -> None:
    told: list[Exception | None] = []

    def slowly(_: object, error: Exception | None) -> None:
        time.sleep(0.05)
        told.append(error)

    with Producer(bootstrap_servers=bootstrap) as producer:
        for count in range(1, 6):
            producer.send(topic, b"x", on_delivery=slowly)
            producer.flush(PATIENCE_S)
            assert told == [None] * count


def test_failures_that_nobody_looks_at_are_logged_and_end_the_block(
    bootstrap: str, topic: str, admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    strict = refusing(topic, admin)
    told: list[Exception | None] = []
    # Nothing leaves before it is flushed: a slow host makes no more batches.
    lingering = Producer(bootstrap_servers=bootstrap, linger_ms=60_000)
    with pytest.raises(UndeliveredRecords) as ended, lingering as producer:
        for partition, count in ((0, 3), (1, 4)):
            for _ in range(count):
                producer.send(strict, b"x", partition=partition, timestamp_ms=1)
        producer.send(strict, b"y", partition=0, timestamp_ms=1, on_delivery=lambda _, error: told.append(error))
        looked_at = producer.send(strict, b"y", partition=1, timestamp_ms=1)
        producer.flush(PATIENCE_S)
        for _ in range(2):
            with pytest.raises(InvalidTimestamp):
                looked_at.result(PATIENCE_S)
        assert isinstance(told[0], InvalidTimestamp)
        # One of each partition in a call whose handle is asked, in one whose handle is not, and in one with a callback.
        records = [{"value": b"z", "partition": number, "timestamp": 1} for number in (0, 1)]
        handle = producer.send_batch(strict, records)
        producer.flush(PATIENCE_S)
        with pytest.raises(InvalidTimestamp):
            handle.result(PATIENCE_S)
        producer.send_batch(strict, records)
        producer.send_batch(strict, records, on_delivery=lambda handle: told.extend(handle.errors()))
    assert ended.value.record_count == 3 + 4 + 1 + 1
    assert "9 records were not delivered" in str(ended.value)
    assert f"4 of {strict}-0, 5 of {strict}-1" in str(ended.value) and "INVALID_TIMESTAMP" in str(ended.value)
    assert isinstance(ended.value.__cause__, InvalidTimestamp) and len(told) == 3
    lines = [record.getMessage() for record in caplog.records if " failed: " in record.getMessage()]
    # A batch of each partition, and of each partition for each of the three calls.
    assert len(lines) == 8
    assert f"producer: 4 records for {strict}-0 failed: " in lines[0] + lines[1]
    assert all("INVALID_TIMESTAMP" in line for line in lines)


def test_failures_do_not_hide_the_error_of_the_block(
    bootstrap: str, topic: str, admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    strict = refusing(topic, admin)
    with pytest.raises(ZeroDivisionError), Producer(bootstrap_servers=bootstrap) as producer:
        producer.send(strict, b"x", timestamp_ms=1)
        raise ZeroDivisionError
    assert "1 records were not delivered" in caplog.text
    caplog.clear()
    producer = Producer(bootstrap_servers=bootstrap)
    producer.send(strict, b"x", timestamp_ms=1)
    producer.close()
    assert "1 records were not delivered" in caplog.text


def test_partitions_added_later_are_used(bootstrap: str, topic: str, admin: Admin) -> None:
    with Producer(bootstrap_servers=bootstrap) as producer:
        producer.send(topic, b"x", partition=0).result(PATIENCE_S)
        admin.create_partitions({topic: 6})
        assert producer.send(topic, b"y", partition=5).result(PATIENCE_S).partition == 5


def test_columns_go_to_partitions_added_later(bootstrap: str, topic: str, admin: Admin) -> None:
    with Producer({"bootstrap.servers": bootstrap}) as producer:
        producer.send_batch(topic, [b"before"]).result(PATIENCE_S)
        count = len(admin.describe_topics([topic])[topic].partitions) + 1
        admin.create_partitions({topic: count})
        producer.send_batch(topic, [{"value": b"after", "partition": count - 1}]).result(PATIENCE_S)
        with pytest.raises(UnknownTopicOrPartition, match=f"has partitions 0 to {count - 1}"):
            producer.send_batch(topic, [{"value": b"nowhere", "partition": count}])


def test_partitions_added_later_are_found_without_any_error(bootstrap: str, topic: str, admin: Admin) -> None:
    """By the age of the metadata alone: every record goes to a partition that is where it was."""
    with Producer(bootstrap_servers=bootstrap, metadata_max_age_ms=200, partitioner="round_robin") as producer:
        producer.send(topic, b"before").result(PATIENCE_S)
        admin.create_partitions({topic: 5})
        wait_until(
            lambda: producer.send(topic, b"after").result(PATIENCE_S).partition == 4, "the fifth partition to be used"
        )


def test_many_threads_share_a_producer(bootstrap: str, topic: str) -> None:
    with Producer(bootstrap_servers=bootstrap, linger_ms=1) as producer:

        def send(thread: int) -> None:
            for number in range(500):
                producer.send(topic, b"%d %d" % (thread, number), b"%d" % thread)

        threads = [threading.Thread(target=send, args=(each,)) for each in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        producer.flush(PATIENCE_S)
    values = [tuple(map(int, (record.value or b"").split())) for record in read_all(bootstrap, topic, 2_000)]
    assert len(set(values)) == len(values) == 2_000
    for thread in range(4):
        assert [number for which, number in values if which == thread] == list(range(500))


def test_after_close_nothing_is_taken(bootstrap: str, topic: str) -> None:
    producer = Producer(bootstrap_servers=bootstrap)
    delivery = producer.send(topic, b"x")
    producer.close()
    producer.close()
    assert delivery.result(0).offset == 0
    assert "closed" in repr(producer)
    with pytest.raises(ClosedError):
        producer.send(topic, b"y")
    with pytest.raises(ClosedError):
        producer.send("another-topic", b"y")


def test_an_unreachable_cluster_is_named_with_its_reason() -> None:
    with pytest.raises(Exception, match="no broker answers") as raised:
        Producer(bootstrap_servers="127.0.0.1:1", max_block_ms=3_000).send("t", b"x")
    assert "127.0.0.1:1: connection refused" in str(raised.value)


def test_full_memory_blocks_then_fails(bootstrap: str, topic: str) -> None:
    # A batch waits for a linger longer than max.block.ms only while memory suffices; a full buffer sends it.
    with Producer(
        bootstrap_servers=bootstrap, buffer_memory=3_000, batch_size=1_000, linger_ms=70_000, max_block_ms=60_000
    ) as producer:
        for _ in range(50):
            producer.send(topic, b"x" * 400)
        producer.flush(PATIENCE_S)
    assert len(read_all(bootstrap, topic, 50)) == 50


def test_admin_errors_name_the_setting(bootstrap: str, topic: str, admin: Admin) -> None:
    with pytest.raises(InvalidConfig):
        admin.create_topic(f"{topic}-bad", 1, 1, {"no.such.setting": "1"})
