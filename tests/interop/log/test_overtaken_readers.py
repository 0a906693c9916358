"""Readers whose next record is deleted before they fetch it: they do, once, what their settings ask for."""

from __future__ import annotations

import pytest

from spark_kafkalite import Admin, Consumer, Producer
from spark_kafkalite.errors import OffsetOutOfRange
from spark_kafkalite.model import HIGH_WATERMARK, TopicPartition
from tests.patience import PATIENCE_S, wait_until

COUNT = 2000


@pytest.fixture
def log(bootstrap: str, topic: str) -> TopicPartition:
    """A partition with the numbers 0 to 1999, in batches that take many fetches."""
    key = TopicPartition(topic, 0)
    with Producer(bootstrap_servers=bootstrap, batch_size=2_000) as producer:
        for number in range(COUNT):
            producer.send(topic, b"%d" % number, partition=0)
    return key


def overtaken(bootstrap: str, admin: Admin, log: TopicPartition, policy: str) -> tuple[Consumer, int]:
    """Return a consumer that has read some records and whose next ones, still at the broker, have been deleted."""
    consumer = Consumer(
        bootstrap_servers=bootstrap,
        auto_offset_reset=policy,
        fetch_max_wait_ms=50,
        max_partition_fetch_bytes=2_000,
        fetch_max_bytes=2_000,
    )
    consumer.assign([log])
    consumer.seek(log, 0)
    read = wait_until(lambda: len(consumer.poll(int(PATIENCE_S * 1000), 10)), "the first records", poll_s=0)
    admin.delete_records({log: 1500})
    return consumer, read


def take_until(consumer: Consumer, last: int) -> list[int]:
    found: list[int] = []

    def has_come() -> bool:
        found.extend(record.offset for record in consumer.poll(500))
        return bool(found) and found[-1] >= last

    wait_until(has_come, lambda: f"offset {last}, the last one read is {found[-1:]}", poll_s=0)
    return found


def test_earliest_goes_on_at_the_new_start(bootstrap: str, admin: Admin, log: TopicPartition) -> None:
    consumer, read = overtaken(bootstrap, admin, log, "earliest")
    with consumer:
        found = take_until(consumer, COUNT - 1)
    # What had been fetched ahead is still good; behind it comes the new start, and every record once.
    gap = next(index for index, offset in enumerate(found) if offset >= 1500)
    assert found[:gap] == list(range(read, read + gap))
    assert found[gap:] == list(range(1500, COUNT))


def test_latest_goes_to_the_end(bootstrap: str, admin: Admin, log: TopicPartition) -> None:
    consumer, _ = overtaken(bootstrap, admin, log, "latest")
    with consumer:
        found: list[int] = []

        def at_the_end() -> bool:
            found.extend(record.offset for record in consumer.poll(200))
            return consumer.position(log) == COUNT

        wait_until(at_the_end, "the consumer at the end", poll_s=0)
        assert all(offset < 1500 for offset in found)
        with Producer(bootstrap_servers=bootstrap) as producer:
            producer.send(log.topic, b"new", partition=0)
        assert take_until(consumer, COUNT) == [COUNT]


def test_none_says_so_and_goes_on_where_it_is_told_to(bootstrap: str, admin: Admin, log: TopicPartition) -> None:
    consumer, _ = overtaken(bootstrap, admin, log, "none")
    with consumer:
        with pytest.raises(OffsetOutOfRange, match=r"is not in the log and auto\.offset\.reset=none") as caught:
            take_until(consumer, COUNT)
        assert caught.value.code == 1
        consumer.seek(log, 1500)
        assert take_until(consumer, COUNT - 1) == list(range(1500, COUNT))


def test_spark_task_fails_or_goes_on_as_fail_on_data_loss_says(
    bootstrap: str, admin: Admin, log: TopicPartition, caplog: pytest.LogCaptureFixture
) -> None:
    from spark_kafkalite.client.read_schema import READ_SCHEMA
    from spark_kafkalite.spark.conditions import SparkConditionError
    from spark_kafkalite.spark.options.options import reader_options
    from spark_kafkalite.spark.reading.offset_ranges import OffsetRange
    from spark_kafkalite.spark.reading.partition_reader import read_task
    from spark_kafkalite.spark.reading.read_plan import ReadPlan, ReadTask

    def offsets(start: int, end: int, fail: str) -> list[int]:
        options = {"kafka.bootstrap.servers": bootstrap, "subscribe": log.topic, "failOnDataLoss": fail}
        plan = ReadPlan.of(reader_options(options), READ_SCHEMA)
        task = ReadTask((OffsetRange(log, start, end),))
        return [offset for batch in read_task(plan, task) for offset in batch.column("offset").to_pylist()]

    admin.delete_records({log: 1500})
    with pytest.raises(SparkConditionError) as caught:
        offsets(1000, 1800, "true")
    assert caught.value.condition == "KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE"
    assert f"offset 1000 is not in the log, which holds [1500, {COUNT})" in str(caught.value)
    assert offsets(1000, 1800, "false") == list(range(1500, 1800))
    assert [record.message.count("500 offsets") for record in caplog.records if "skipped" in record.message] == [1]
    admin.delete_records({log: HIGH_WATERMARK})
    assert offsets(1000, 1800, "false") == []
